"""Changed lines of the series that a test has to see. tox -e mutation"""
