"""Parts of the sandbox benchmark: the workload, the backends that are compared, the drivers, the accounts.

Only `peers/` runs elsewhere: in the other ways' own processes and interpreters.
"""
