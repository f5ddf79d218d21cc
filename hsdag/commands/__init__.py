"""Do what each command of hsdag is for, behind the command line and the Python functions."""
