"""From champions to an installable package."""
