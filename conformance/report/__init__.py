"""A report of one model on one machine, and the table of such reports: scripts/report.sh --help"""
