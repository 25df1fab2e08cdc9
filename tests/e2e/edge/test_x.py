import time, httpx, grpc, http.client
from .running_edge import *
def test_z(edge, caller, router, shared_edge):
    print()
    t=time.time()
    try:
        r=httpx.post(edge.url+"/v2/Hang", headers={"x-envoy-upstream-rq-timeout-ms":"200"}, timeout=3); print(r, r.text, time.time()-t)
    except Exception as e: print(repr(e), time.time()-t)
    for req, resp in ((5,5),(60,60),(60,60)):
        t=time.time()
        x=caller.unary("Count")(b'x'*(req<<20), timeout=20); print(x, time.time()-t)
        t=time.time()
        x=caller.unary("Size")(str(resp<<20).encode(), timeout=20); print(len(x), time.time()-t)
        t=time.time()
        x=caller.unary("Echo")(b'x'*(resp<<20), timeout=20); print(len(x), "echo", time.time()-t)
        t=time.time()
        x=httpx.post(edge.url+"/v2/Count", content=b'x'*(req<<20)).text;  print(x, time.time()-t)
        t=time.time()
        x=httpx.post(edge.url+"/v2/Size", content=str(req<<20)).content;  print(len(x), time.time()-t)
    for i in range(5):
        t=time.time()
        print(caller.refused("Early", b'x'*(70<<20)), time.time()-t)
        t=time.time()
        try:
            with http1(edge.port) as c:
                c.request("POST", "/v2/Early", body=b'x'*(70<<20)); r=c.getresponse(); print(r.status, r.read(), time.time()-t)
        except Exception as e: print(repr(e), time.time()-t)
        try: 
            r=httpx.post(edge.url+"/v2/Early", content=b'x'*(70<<20)); print(r, r.text)
        except Exception as e: print(repr(e), time.time()-t)
        with httpx.Client(http1=False,http2=True) as c:
            r=c.post(edge.url+"/v2/Early", content=b'x'*(70<<20)); print(r, r.text)
    with http1(edge.port) as c:
        c.request("GET", "/v2/a", headers={"big":"x"*70000}); r=c.getresponse(); print(r.status, r.read(), time.time()-t)
    with http1(edge.port) as c:
        c.request("GET", "/v2/a", headers={f"h{i}":"x" for i in range(300)}); r=c.getresponse(); print(r.status, r.read(), time.time()-t)
    print(raw_call(edge.port, SERVICE+"Echo", frame(b"x"), headers=[("big","x"*70000)]))
    print(raw_call(edge.port, SERVICE+"Echo", frame(b"x"), headers=[(f"h{i}","x") for i in range(300)]))
    print(raw_call(edge.port, SERVICE+"Echo"))
