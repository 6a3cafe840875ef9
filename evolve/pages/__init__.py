"""Pages: the archive's content as HTML for a browser, served live or written into one file."""
