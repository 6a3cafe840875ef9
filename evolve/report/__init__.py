"""What the user sees: tables, reports and the live display."""
