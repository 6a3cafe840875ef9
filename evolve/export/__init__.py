"""Export: confirmed champions become an installable Python package."""
