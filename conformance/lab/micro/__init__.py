"""What a snapshot, a proposal, a plan and a row that joins cost. tox -e micro"""
