"""Commands: the use case behind each command, shared by the command line and the API."""
