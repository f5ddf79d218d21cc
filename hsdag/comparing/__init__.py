"""hsdag compare: methods side by side on one problem."""
