"""Names in Redis, shared by front and workers of the stand-in."""

WORK = "bench:work"
RESULT = "bench:result:"
ALIVE = "bench:worker:"
