"""Pages: what the archive holds, as HTML for a browser, served live or written into one file."""
