"""What people see: tables and the live display."""
