"""The `durastore` command line: one module a command, each a parser and a printer around one library call."""
