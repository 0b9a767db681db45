"""Temporary."""
class M:
    order=1
def measure(call,x,kind): return M()
def require(m,order,question): return None
