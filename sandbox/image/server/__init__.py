"""What runs inside the sandbox: standard library only, started as scripts, never imported by callers.

`pid1` holds the lease and starts `dispatcher`, which hands each call to a `zygote`, which forks a `child`.
The one exception is `wire`, which both sides of the wall share.
"""
