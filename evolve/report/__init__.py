"""Output for the user: tables, reports and the live display."""
