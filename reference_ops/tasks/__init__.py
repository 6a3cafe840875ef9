"""Tasks in foreign formats, and plain functions, as ops. A task is code: loading it runs it."""
