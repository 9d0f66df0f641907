import ctypes,sys,os,json,time,statistics,traceback
import torch
OUT=os.environ.get('OUT','/tmp'); HERE=os.path.dirname(os.path.abspath(__file__)); sec=sys.argv[1]
R={}
def rec(k,v,show=True):
    R[k]=v
    json.dump(R,open(f'{OUT}/{sec}.json','w'),indent=0)
    if show: print(f'{k}: {v}',flush=True)
torch.backends.cuda.matmul.allow_tf32=False
dev='cuda'; torch.zeros(1,device=dev)
cu=ctypes.CDLL('libcuda.so.1')
def chk(r,w=''):
    if r: raise RuntimeError(f'cuda {r} {w}')
def load(path):
    m=ctypes.c_void_p(); d=open(os.path.join(HERE,path),'rb').read(); chk(cu.cuModuleLoadData(ctypes.byref(m),d),path); return m
class K:
    def __init__(s,mod,name,smem=0):
        s.f=ctypes.c_void_p(); s.name=name; chk(cu.cuModuleGetFunction(ctypes.byref(s.f),mod,name.encode()),name); s.smem=smem
        if smem>48000: chk(cu.cuFuncSetAttribute(s.f,8,smem),name+' smem')
        v=ctypes.c_int(); cu.cuFuncGetAttribute(ctypes.byref(v),4,s.f); s.regs=v.value
    def __call__(s,grid,block,*a):
        keep=[]
        for x in a:
            if isinstance(x,torch.Tensor): keep.append(ctypes.c_void_p(x.data_ptr()))
            else: keep.append(ctypes.c_uint(x))
        arr=(ctypes.c_void_p*len(keep))(*[ctypes.cast(ctypes.byref(k),ctypes.c_void_p) for k in keep])
        g=grid if isinstance(grid,tuple) else (grid,1)
        chk(cu.cuLaunchKernel(s.f,g[0],g[1],1,block,1,1,s.smem,ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),arr,None),s.name)
def gtime(fn,calls=30,reps=25,warm=2):
    st=torch.cuda.Stream(); st.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(st):
        for i in range(warm): fn(i)
    st.synchronize(); torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for i in range(calls): fn(i)
    for _ in range(3): g.replay()
    torch.cuda.synchronize(); ts=[]
    for _ in range(reps):
        a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); b.synchronize(); ts.append(a.elapsed_time(b)*1e3/calls)
    del g
    return round(statistics.median(ts),2)
def guard(k,fn):
    try: fn()
    except Exception as e:
        rec('FAIL '+k,repr(e)[:300]); traceback.print_exc()
        try: torch.cuda.synchronize()
        except Exception: print('context lost'); sys.exit(1)

Kst,I,H=32,40,128
def cfc_params(g):
    r=lambda *s:torch.randn(*s,device=dev,generator=g)
    return dict(Wb=r(H,I+H)*(I+H)**-.5,bb=r(H)*.1,Wh=r(4,H,H)*H**-.5,bh=r(4,H)*.1)
def cfc_ref(P,x,dt):
    B=x.shape[0]; h=torch.zeros(B,H,dtype=x.dtype,device=dev); hs=[]
    for k in range(x.shape[1]):
        u=1.7159*torch.tanh(0.666*(torch.cat([x[:,k],h],1)@P['Wb'].T+P['bb']))
        f1=torch.tanh(u@P['Wh'][0].T+P['bh'][0]); f2=torch.tanh(u@P['Wh'][1].T+P['bh'][1])
        s=torch.sigmoid((u@P['Wh'][2].T+P['bh'][2])*dt[:,k:k+1]+(u@P['Wh'][3].T+P['bh'][3]))
        h=f1*(1-s)+s*f2; hs.append(h)
    return torch.stack(hs,1)
PT=512*128+128*168+640
VAR={'c2v':(2,512,1,16,0),'c4v':(4,256,1,16,0),'c1a':(1,512,1,16,16),'c1b':(1,512,1,12,20),'c1c':(1,512,1,14,18),'c1p2':(1,512,2,12,20),'ada':(1,512,1,13,11),'strm':(1,512,1,0,0),'r12':(1,512,1,12,0),
 'c2b':(2,512,1,16,0),'c2m':(2,512,1,16,0),'c2p2m':(2,512,2,16,0),'c4b':(4,256,1,16,0),'c4m':(4,256,1,16,0),'c4p4m':(4,256,4,16,0)}

COMB=[('c1a','fwd_c1a','bwd_c1a'),('c1a2','fw2_c1a','bwd_c1a'),('c1c','fwd_c1c','bwd_c1c'),('c1c2','fw2_c1c','bwd_c1c'),('c1p2','fwd_c1p2','bwd_c1p2'),('c1p22','fw2_c1p2','bwd_c1p2'),('ada','fwd_ada','bwd_ada'),('ada2','fw2_ada','bwd_ada'),
 ('c2m','fwd_c2m','bwd_c2m'),('c2m2','fw2_c2m','bwd_c2m'),('c2v','fwd_c2m','bwd_c2v'),('c2b','fwd_c2b','bwd_c2b'),('c2v2','fw2_c2m','bwd_c2v'),('c2p2m','fwd_c2p2m','bwd_c2p2m'),('c4m','fwd_c4m','bwd_c4m'),('c4m2','fw2_c4m','bwd_c4m'),('c4v','fwd_c4m','bwd_c4v')]
def cfc():
    m=load('cfc.cubin')
    for B in (32,1,256):
        g=torch.Generator(device=dev); g.manual_seed(B)
        P=cfc_params(g); x=torch.randn(B,Kst,I,device=dev,generator=g); dt=torch.rand(B,Kst,device=dev,generator=g)*2; gH=torch.randn(B,Kst,H,device=dev,generator=g)
        Pd={k:v.double().requires_grad_() for k,v in P.items()}; xd=x.double().requires_grad_()
        hr=cfc_ref(Pd,xd,dt.double()); (hr*gH.double()).sum().backward()
        BK=B*Kst; ln={1:32,32:64,256:256}[B]; ns=BK//ln
        xw=torch.empty(BK,H,device=dev); act=torch.empty(5,BK,H,device=dev); D=torch.empty(5,BK,H,device=dev); Pp=torch.empty(64,PT,device=dev); G=torch.empty(PT,device=dev); dx=torch.empty(BK,I,device=dev)
        kx=K(m,'xw_k'); kg=K(m,'grad2_k'); kr=K(m,'reduce_k')
        fx=lambda:kx(BK//16,256,x,P['Wb'],P['bb'],xw)
        def fg(ln=ln): kg((16+(ln+31)//32,BK//ln),128,D,act,x,P['Wb'],Pp,dx,BK,Kst,ln)
        fr=lambda ns=ns:kr((PT//4+255)//256,256,Pp,G,ns)
        D.normal_(); act.normal_()
        for nm,f in (('xw',fx),('grad2',fg),('reduce',fr)): rec(f'B{B} {nm} us',gtime(lambda i:f()))
        for l2 in {1:(),32:(32,128),256:(128,512)}[B]: rec(f'B{B} grad2 len{l2}',[gtime(lambda i:fg(l2)),gtime(lambda i:fr(BK//l2))])
        for nm,fn_,bn_ in COMB:
            fv,bv=VAR[fn_[4:]],VAR[bn_[4:]]; CL,T,SPB,_,NSM=fv; NSMB=bv[4]
            if B%SPB or (B==256 and nm[:2]=='c4'): continue
            def one():
                kf=K(m,fn_,(2*SPB*H//4+1+NSM*T)*16); kb=K(m,bn_,(SPB*5*H//4+1+NSMB*T)*16)
                ff=lambda:kf(B//SPB*CL,T,xw,dt,P['Wb'],P['Wh'],P['bh'],act,B,Kst)
                fb=lambda:kb(B//SPB*CL,T,gH,dt,P['Wb'],P['Wh'],act,D,B,Kst)
                def al(i=0): fx();ff();fb();fg();fr()
                outs=[]
                for rep in range(20):
                    for z in (xw,act,D,Pp,G,dx): z.fill_(float('nan'))
                    al(); torch.cuda.synchronize(); outs=outs[:1]+[[act.clone(),D.clone(),G.clone(),dx.clone()]]
                    same=all(torch.equal(a,b) for a,b in zip(outs[0],outs[-1])) and (rep==0 or same)
                rel=lambda a,b:float((a.double()-b).norm()/b.norm())
                gWh=G[:512*128].view(4,H,H); gWb=G[512*128:512*128+128*168].view(H,168); gb=G[-640:].view(5,H)
                e=dict(h=rel(act[2].view(B,Kst,H),hr.detach()),dWh=rel(gWh,Pd['Wh'].grad),dWb=rel(gWb,Pd['Wb'].grad),dbh=rel(gb[:4],Pd['bh'].grad),dbb=rel(gb[4],Pd['bb'].grad),dx=rel(dx.view_as(xd),xd.grad))
                ok=all(v<1e-4 for v in e.values())
                rec(f'B{B} {nm}',dict(total=gtime(al,20,25),fwd=gtime(lambda i:ff(),20,25),bwd=gtime(lambda i:fb(),20,25),ok=ok,same=same,err='%.1e'%max(e.values()),regs=(kf.regs,kb.regs)))
                if not ok: rec(f'B{B} {nm} err',{k:'%.1e'%v for k,v in e.items()})
            guard(f'B{B} {nm}',one)

def peers():
    for B in (32,1,256):
        g=torch.Generator(device=dev); g.manual_seed(B)
        for tf in (True,False):
            def gru():
                torch.backends.cudnn.allow_tf32=tf
                m=torch.nn.GRU(I,H,batch_first=True).to(dev); x=torch.randn(B,Kst,I,device=dev,requires_grad=True); go=torch.randn(B,Kst,H,device=dev)
                def f(i):
                    y,_=m(x); torch.autograd.grad(y,[x]+list(m.parameters()),go)
                rec(f'B{B} GRU cudnn fwd+bwd tf32={tf}',gtime(f,20,20,3))
            guard('gru',gru)
        def eager():
            P={k:v.requires_grad_() for k,v in cfc_params(g).items()}; x=torch.randn(B,Kst,I,device=dev,requires_grad=True); dt=torch.rand(B,Kst,device=dev); go=torch.randn(B,Kst,H,device=dev)
            def f(i): torch.autograd.grad(cfc_ref(P,x,dt),[x]+list(P.values()),go)
            rec(f'B{B} CfC eager in graph fwd+bwd',gtime(f,1,20,3))
        guard('eager',eager)
    for n in (4096,65536,1<<20,1<<24,1<<26):
        x=torch.randn(n,device=dev); c=100 if n<=65536 else 20
        def pp():
            rec(f'n{n} vector_norm inf',gtime(lambda i:torch.linalg.vector_norm(x,float('inf')),c))
            rec(f'n{n} topk(n/100) of abs',gtime(lambda i:torch.topk(x.abs(),n//100),c if n<1<<24 else 5,20))
            kk=n-n//100
            if n<=1<<20: rec(f'n{n} kthvalue of abs',gtime(lambda i:torch.kthvalue(x.abs(),kk),c if n<=65536 else 2,20 if n<=65536 else 5))
            else:
                ts=[]
                for _ in range(2):
                    a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True); a.record(); torch.kthvalue(x.abs(),kk); b.record(); b.synchronize(); ts.append(a.elapsed_time(b)*1e3)
                rec(f'n{n} kthvalue of abs',min(ts))
        guard(f'peer n{n}',pp)
        if n==1<<26:
            y=torch.empty_like(x); rec('copy 268MB TB/s',round(8*n/gtime(lambda i:y.copy_(x),10)/1e6,3)); rec('sum TB/s',round(4*n/gtime(lambda i:x.sum(),10)/1e6,3))

def p99():
    m=load('p99.cubin'); k={n:K(m,n) for n in ('p_sample','p_main','p_final','p_r1','p_r2','p_r3','p_small2','p_small8','noop_k')}
    z=lambda n:torch.zeros(n,dtype=torch.int32,device=dev)
    br=z(2); rows=z(264*516); r1=z(264*256); r2=z(264*256); meta=z(4); st=z(1); slot=z(8); zero=z(1)
    gr=lambda n,per=2048:min(264,max(1,-(-n//per)))
    S=lambda x,n:k['p_sample'](1,512,x,n,br)
    M=lambda x,n,nb=None:k['p_main'](nb or gr(n),512,x,n,br,rows)
    F=lambda n,nb=None:k['p_final'](1,1024,rows,br,n,nb or gr(n),slot,st)
    def Rp(x,n,s=st,nb=None): nb=nb or gr(n); k['p_r1'](nb,512,x,n,r1,s); k['p_r2'](nb,512,x,n,r1,r2,meta,s); k['p_r3'](1,1024,r2,meta,nb,slot,s)
    def core(x,n,nb=None): S(x,n);M(x,n,nb);F(n,nb)
    def a_(x,n,nb=None): core(x,n,nb);Rp(x,n,st,nb)
    bb_=torch.tensor([0xF000,10],dtype=torch.int32,device=dev)
    def bad(x,n): br.copy_(bb_); M(x,n);F(n);Rp(x,n)
    def b_(x,n,nb=None): Rp(x,n,zero,nb)
    def c_(x,n): k['p_small2' if n<=4096 else 'p_small8'](1,512,x,n,slot)
    g=torch.Generator(device=dev); g.manual_seed(7)
    def dist(d,n):
        a=torch.randn(n,device=dev,generator=g)
        if d=='t2': a=a/(torch.empty(n,device=dev).exponential_(1.,generator=g)).sqrt()
        if d=='spike': a[n//3]=1e4
        if d=='equal': a.fill_(0.37)
        if d=='naninf': a[::97]=float('nan'); a[5::1001]=float('inf'); a[7::1003]=-float('inf')
        if d=='sparse': a=a*(torch.rand(n,device=dev,generator=g)<0.005)
        if d=='lognorm': a=(a*20).exp()
        if d=='denorm': a=a*1e-41
        if d=='allnan': a.fill_(float('nan'))
        return a
    bad_=[]; worst={}; rep=0
    for n in (1,31,33,257,4095,4096,5000,16384,65535,65536,1000003,1<<20,1<<24,1<<26):
        for d in ('normal','t2','spike','equal','naninf','sparse','lognorm','denorm','allnan') if n<1<<26 else ('normal','t2','spike','equal'):
            x=dist(d,n); ax=x.abs(); f=ax[torch.isfinite(ax)]; nn=f.numel()
            truth=float(torch.sort(f)[0][nn-1-nn//100]) if nn else None
            vs={}
            if n>=4096: vs.update(a=a_,a264=lambda x,n:a_(x,n,264),bad=bad)
            vs['b']=b_; vs['b264']=lambda x,n:b_(x,n,264)
            if n<=16384: vs.update(c=c_)
            res={}
            for v,fn in vs.items():
                slot.fill_(-7); slot[2]=0; fn(x,n); torch.cuda.synchronize()
                s=slot.cpu(); res[v]=(int(s[0]),int(s[3]))
                if v=='a' and int(st[0])==0: rep+=1; rec(f'repair used n{n} {d}',1,False)
            if nn==0:
                if any(a!=(-7,n) for a in res.values()): bad_.append((n,d,res))
                continue
            if len(set(res.values()))!=1: bad_.append((n,d,'variants differ',res))
            val=torch.tensor([list(res.values())[0][0]],dtype=torch.int32).view(torch.float32).item(); err=abs(val-truth)/truth if truth else abs(val)
            if list(res.values())[0][1]!=n-nn: bad_.append((n,d,'nonfinite',res,n-nn))
            if d!='denorm': worst[d]=max(worst.get(d,0),err)
            if d!='denorm' and err>5e-3: bad_.append((n,d,'err',err,val,truth))
    rec('p99 worst rel err',{a:'%.1e'%b for a,b in worst.items()}); rec('p99 bad',[str(b) for b in bad_[:12]]); rec('p99 repairs',rep)
    rec('node noop us',gtime(lambda i:k['noop_k'](1,32),200))
    for n in (4096,16384,65536,1<<18,1<<20,1<<22,1<<24,1<<26):
        x=dist('normal',n); c=100 if n<=1<<20 else 20; T={}
        if n<=16384: T['c']=gtime(lambda i:c_(x,n),c)
        T['norm inf']=gtime(lambda i:torch.linalg.vector_norm(x,float('inf')),c)
        T['topk']=gtime(lambda i:torch.topk(x.abs(),max(1,n//100)),min(c,20),20)
        for nb in sorted({gr(n,2048),gr(n,4096),gr(n,8192),gr(n,16384)}): T[f'b nb{nb}']=gtime(lambda i:b_(x,n,nb),c)
        if n>=65536:
            core(x,n); nb=gr(n)
            T['a full']=gtime(lambda i:a_(x,n),c); T['a core']=gtime(lambda i:core(x,n),c)
            T['S']=gtime(lambda i:S(x,n),c); T['M']=gtime(lambda i:M(x,n),c); T['F']=gtime(lambda i:F(n),c); T['Rexit3']=gtime(lambda i:Rp(x,n),c)
            T['R1']=gtime(lambda i:k['p_r1'](nb,512,x,n,r1,zero),c); T['R2']=gtime(lambda i:k['p_r2'](nb,512,x,n,r1,r2,meta,zero),c); T['R3']=gtime(lambda i:k['p_r3'](1,1024,r2,meta,nb,slot,zero),c)
            T['span']=int(br[1])
        if n>=1<<20:
            nbuf=max(2,(256<<20)//(4*n)); xs=[dist('normal',n) for _ in range(nbuf)]; cc=max(nbuf,20)
            T['a cold']=gtime(lambda i:a_(xs[i%nbuf],n),cc); T['M cold']=gtime(lambda i:M(xs[i%nbuf],n),cc); T['b cold']=gtime(lambda i:b_(xs[i%nbuf],n),cc)
            T['norm inf cold']=gtime(lambda i:torch.linalg.vector_norm(xs[i%nbuf],float('inf')),cc)
            del xs
        rec(f'n{n}',T)
        if n==1<<26:
            for d in ('t2','equal','spike','sparse'):
                x=dist(d,n); core(x,n); torch.cuda.synchronize(); r_=int(st[0]); sp=int(br[1])
                rec(f'n{n} {d}',dict(a=gtime(lambda i:a_(x,n),10),M=gtime(lambda i:M(x,n),10),F=gtime(lambda i:F(n),10),b=gtime(lambda i:b_(x,n),10),ok=r_,span=sp))
t0=time.time()
if sec=='p99': p99()
elif sec=='peers': peers()
elif sec=='cfc': cfc()
print(sec,'%.1f s'%(time.time()-t0))
