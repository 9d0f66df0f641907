// CfC scanned over K steps, hand-written trial. H=128, I=40. No headers, no atomics.
#define H 128
#define I 40
#define IN 168
typedef unsigned int u32;
#define FULL 0xffffffffu
#ifdef FASTM
__device__ __forceinline__ float tanh_(float x){ float e=__expf(2.f*x); return 1.f-__fdividef(2.f,e+1.f); }
#else
__device__ __forceinline__ float tanh_(float x){ return tanhf(x); }
#endif
__device__ __forceinline__ u32 saddr(const void*p){ return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u32 mapa(u32 a,u32 r){ u32 o; asm("mapa.shared::cluster.u32 %0, %1, %2;":"=r"(o):"r"(a),"r"(r)); return o; }
__device__ __forceinline__ u32 crank(){ u32 r; asm("mov.u32 %0, %%cluster_ctarank;":"=r"(r)); return r; }
__device__ __forceinline__ void csync(){ asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;":::"memory"); }
__device__ __forceinline__ void st_rem(u32 a,float v){ asm volatile("st.shared::cluster.f32 [%0], %1;"::"r"(a),"f"(v):"memory"); }
__device__ __forceinline__ void st_asy(u32 a,float v,u32 m){ asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"::"r"(a),"r"(__float_as_uint(v)),"r"(m):"memory"); }
__device__ __forceinline__ void st_asy4(u32 a,float x,float y,float z,float w,u32 m){ asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"::"r"(a),"r"(__float_as_uint(x)),"r"(__float_as_uint(y)),"r"(__float_as_uint(z)),"r"(__float_as_uint(w)),"r"(m):"memory"); }
__device__ __forceinline__ void mb_init(u32 a){ asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"::"r"(a):"memory"); }
__device__ __forceinline__ void mb_expect(u32 a,u32 bytes){ asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"::"r"(a),"r"(bytes):"memory"); }
__device__ __forceinline__ void mb_wait(u32 a,u32 par){
  asm volatile("{\n .reg .pred p;\n L1:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra D1;\n bra L1;\n D1:\n}"::"r"(a),"r"(par):"memory"); }

// 4 values over S lanes -> lane s holds the total of value s&3
template<int S> __device__ __forceinline__ float red4(float a0,float a1,float a2,float a3,int s){
  bool o1=s&1,o2=s&2;
  float k0=o1?a1:a0,g0=o1?a0:a1,k1=o1?a3:a2,g1=o1?a2:a3;
  k0+=__shfl_xor_sync(FULL,g0,1); k1+=__shfl_xor_sync(FULL,g1,1);
  float kk=o2?k1:k0,gg=o2?k0:k1; kk+=__shfl_xor_sync(FULL,gg,2);
  #pragma unroll
  for(int m=4;m<S;m<<=1) kk+=__shfl_xor_sync(FULL,kk,m);
  return kk;
}
__device__ __forceinline__ float4 ldv(const float4*p){ float4 v; asm volatile("ld.global.nc.v4.f32 {%0,%1,%2,%3}, [%4];":"=f"(v.x),"=f"(v.y),"=f"(v.z),"=f"(v.w):"l"(p)); return v; }
#define C1 1.7159f
#define C2 0.666f
// act: [5][B*K][H] = f1,f2,h,s,u
template<int CL,int T,int SPB,int NR,int NSM,int XCH>
__device__ __forceinline__ void fwd_body(const float*__restrict__ xw,const float*__restrict__ dt,const float*__restrict__ Wb,
   const float*__restrict__ Wh,const float*__restrict__ bh,float*__restrict__ act,int B,int K){
  constexpr int R=H/CL,S=T/R,CJ=H/(4*S);
  extern __shared__ float4 sm4[];
  float*hs=(float*)sm4; float*us=hs+SPB*H; float4*sw=sm4+2*SPB*H/4+1;
  u32 mbu=saddr(us+SPB*H),mbh=mbu+8;
  const int tid=threadIdx.x,s=tid%S,q=s&3,lane=tid&31,base=lane&~3;
  const u32 rank=CL>1?crank():0;
  const int r=rank*R+tid/S;
  const int b0=(blockIdx.x/CL)*SPB;
  float4 wb[CJ],wr[NR>0?NR:1];
  #pragma unroll
  for(int j=0;j<CJ;j++) wb[j]=*(const float4*)(Wb+(size_t)r*IN+I+(j*S+s)*4);
  #pragma unroll
  for(int x=0;x<NR;x++) wr[x]=*(const float4*)(Wh+(size_t)((x/CJ)*H+r)*H+((x%CJ)*S+s)*4);
  #pragma unroll
  for(int x=NR;x<NR+NSM;x++) sw[(x-NR)*T+tid]=*(const float4*)(Wh+(size_t)((x/CJ)*H+r)*H+((x%CJ)*S+s)*4);
  for(int i=tid;i<SPB*H;i+=T) hs[i]=0.f;
  const float bias=bh[q*H+r]; const float*wgl=Wh+r*H+s*4;
  const size_t BKH=(size_t)B*K*H;
  if(CL>1){ if(XCH&&tid==0){ mb_init(mbu); mb_init(mbh); asm volatile("fence.mbarrier_init.release.cluster;":::"memory"); } csync(); }
  else __syncthreads();
  float xv[SPB],dv[SPB];
  #pragma unroll
  for(int n=0;n<SPB;n++){ xv[n]=xw[((size_t)(b0+n)*K)*H+r]; dv[n]=dt[(b0+n)*K]; }
  for(int k=0;k<K;k++){
    float xn[SPB],dn[SPB];
    const int kn=k+1<K?k+1:k;
    #pragma unroll
    for(int n=0;n<SPB;n++){ xn[n]=xw[((size_t)(b0+n)*K+kn)*H+r]; dn[n]=dt[(b0+n)*K+kn]; }
    if(CL>1&&XCH&&tid==0) mb_expect(mbu,SPB*H*4);
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float a0=0.f,a1=0.f;
      #pragma unroll
      for(int j=0;j<CJ;j++){ float4 v=((const float4*)(hs+n*H))[j*S+s];
        a0=fmaf(wb[j].x,v.x,a0); a1=fmaf(wb[j].y,v.y,a1); a0=fmaf(wb[j].z,v.z,a0); a1=fmaf(wb[j].w,v.w,a1); }
      a0+=a1;
      #pragma unroll
      for(int m=1;m<S;m<<=1) a0+=__shfl_xor_sync(FULL,a0,m);
      float u=C1*tanh_(C2*(a0+xv[n]));
      if(CL==1){ if(s==0) us[n*H+r]=u; }
      else if(s<CL){ u32 a=mapa(saddr(us+n*H+r),s); if(XCH) st_asy(a,u,mapa(mbu,s)); else st_rem(a,u); }
      if(s==S-1) act[4*BKH+((size_t)(b0+n)*K+k)*H+r]=u;
    }
    if(CL==1) __syncthreads(); else if(XCH) mb_wait(mbu,k&1); else csync();
    if(CL>1&&XCH&&tid==0) mb_expect(mbh,SPB*H*4);
    float a[SPB][4];
    #pragma unroll
    for(int n=0;n<SPB;n++) a[n][0]=a[n][1]=a[n][2]=a[n][3]=0.f;
    #pragma unroll
    for(int j=0;j<CJ;j++){
      float4 v[SPB];
      #pragma unroll
      for(int n=0;n<SPB;n++) v[n]=((const float4*)(us+n*H))[j*S+s];
      #pragma unroll
      for(int g=0;g<4;g++){
        const int x=g*CJ+j; float4 w;
        if(x<NR) w=wr[x<NR?x:0]; else if(x<NR+NSM) w=sw[(x-NR)*T+tid]; else w=ldv((const float4*)(wgl+g*H*H+j*S*4));
        #pragma unroll
        for(int n=0;n<SPB;n++){ a[n][g]=fmaf(w.x,v[n].x,a[n][g]); a[n][g]=fmaf(w.y,v[n].y,a[n][g]); a[n][g]=fmaf(w.z,v[n].z,a[n][g]); a[n][g]=fmaf(w.w,v[n].w,a[n][g]); }
      }
    }
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float v=red4<S>(a[n][0],a[n][1],a[n][2],a[n][3],s)+bias;
      float ta=__shfl_sync(FULL,v,base|2);
      if(q==3) v=0.5f*fmaf(ta,dv[n],v);
      float t=tanh_(v);
      if(q==3) t=fmaf(0.5f,t,0.5f);
      float f1=__shfl_sync(FULL,t,base),f2=__shfl_sync(FULL,t,base|1),sg=__shfl_sync(FULL,t,base|3);
      float h=fmaf(sg,f2,f1*(1.f-sg));
      if(CL==1){ if(s==0) hs[n*H+r]=h; }
      else if(s<CL){ u32 ad=mapa(saddr(hs+n*H+r),s); if(XCH) st_asy(ad,h,mapa(mbh,s)); else st_rem(ad,h); }
      if(s<4) act[q*BKH+((size_t)(b0+n)*K+k)*H+r]=q==2?h:t;
    }
    if(CL==1) __syncthreads(); else if(XCH) mb_wait(mbh,k&1); else csync();
    #pragma unroll
    for(int n=0;n<SPB;n++){ xv[n]=xn[n]; dv[n]=dn[n]; }
  }
  if(CL>1) csync();
}

// forward, second form: phase 1: 4 rows a thread; phase 2: 2 rows x 4 heads a thread
template<int S> __device__ __forceinline__ float red8(const float*a,int s){ // a[e*4+g]; lane s gets e=(s>>2)&1, g=s&3
  bool o1=s&1,o2=s&2,o4=s&4; float k[4],g[4];
  #pragma unroll
  for(int i=0;i<4;i++){ k[i]=o1?a[2*i+1]:a[2*i]; g[i]=o1?a[2*i]:a[2*i+1]; }
  #pragma unroll
  for(int i=0;i<4;i++) k[i]+=__shfl_xor_sync(FULL,g[i],1);
  float m0=o2?k[1]:k[0],h0=o2?k[0]:k[1],m1=o2?k[3]:k[2],h1=o2?k[2]:k[3];
  m0+=__shfl_xor_sync(FULL,h0,2); m1+=__shfl_xor_sync(FULL,h1,2);
  float v=o4?m1:m0,y=o4?m0:m1; v+=__shfl_xor_sync(FULL,y,4);
  #pragma unroll
  for(int m=8;m<S;m<<=1) v+=__shfl_xor_sync(FULL,v,m);
  return v;
}
template<int CL,int T,int SPB,int NR,int NSM,int XCH>
__device__ __forceinline__ void fwd2_body(const float*__restrict__ xw,const float*__restrict__ dt,const float*__restrict__ Wb,
   const float*__restrict__ Wh,const float*__restrict__ bh,float*__restrict__ act,int B,int K){
  constexpr int R=H/CL,SB=T/(R/4),JB=H/(4*SB),S=T/(R/2),CJ=H/(4*S);
  extern __shared__ float4 sm4[];
  float*hs=(float*)sm4; float*us=hs+SPB*H; float4*sw=sm4+2*SPB*H/4+1;
  u32 mbu=saddr(us+SPB*H),mbh=mbu+8;
  const int tid=threadIdx.x,s=tid%S,q=s&3,lane=tid&31,base=lane&~3,sb=tid%SB;
  const u32 rank=CL>1?crank():0;
  const int r0=rank*R+(tid/S)*2,r=r0+((s>>2)&1);
  const int w0=rank*R+(tid/SB)*4,rw=w0+(sb&3);
  const int b0=(blockIdx.x/CL)*SPB;
  float4 wb[4*JB],wr[NR>0?NR:1];
  const float*wgl=Wh+r0*H+s*4; // weight x: e=x/(4CJ), g=(x/CJ)%4, j=x%CJ
  #pragma unroll
  for(int x=0;x<4*JB;x++) wb[x]=*(const float4*)(Wb+(size_t)(w0+x/JB)*IN+I+((x%JB)*SB+sb)*4);
  #pragma unroll
  for(int x=0;x<NR;x++) wr[x]=*(const float4*)(wgl+((x/CJ)%4*H+x/(4*CJ))*H+(x%CJ)*S*4);
  #pragma unroll
  for(int x=NR;x<NR+NSM;x++) sw[(x-NR)*T+tid]=*(const float4*)(wgl+((x/CJ)%4*H+x/(4*CJ))*H+(x%CJ)*S*4);
  for(int i=tid;i<SPB*H;i+=T) hs[i]=0.f;
  const float bias=bh[q*H+r];
  const size_t BKH=(size_t)B*K*H;
  if(CL>1){ if(XCH&&tid==0){ mb_init(mbu); mb_init(mbh); asm volatile("fence.mbarrier_init.release.cluster;":::"memory"); } csync(); }
  else __syncthreads();
  float xv[SPB],dv[SPB];
  #pragma unroll
  for(int n=0;n<SPB;n++){ xv[n]=xw[((size_t)(b0+n)*K)*H+rw]; dv[n]=dt[(b0+n)*K]; }
  for(int k=0;k<K;k++){
    float xn[SPB],dn[SPB];
    const int kn=k+1<K?k+1:k;
    #pragma unroll
    for(int n=0;n<SPB;n++){ xn[n]=xw[((size_t)(b0+n)*K+kn)*H+rw]; dn[n]=dt[(b0+n)*K+kn]; }
    if(CL>1&&XCH&&tid==0) mb_expect(mbu,SPB*H*4);
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float b[4]={0.f,0.f,0.f,0.f};
      #pragma unroll
      for(int j=0;j<JB;j++){ float4 v=((const float4*)(hs+n*H))[j*SB+sb];
        #pragma unroll
        for(int e=0;e<4;e++){ float4 w=wb[e*JB+j]; b[e]=fmaf(w.x,v.x,b[e]); b[e]=fmaf(w.y,v.y,b[e]); b[e]=fmaf(w.z,v.z,b[e]); b[e]=fmaf(w.w,v.w,b[e]); } }
      float u=C1*tanh_(C2*(red4<SB>(b[0],b[1],b[2],b[3],sb)+xv[n]));
      if(CL==1){ if(sb<4) us[n*H+rw]=u; }
      else if((sb>>2)<CL){ u32 a=mapa(saddr(us+n*H+rw),sb>>2); if(XCH) st_asy(a,u,mapa(mbu,sb>>2)); else st_rem(a,u); }
      if((sb>>2)==SB/4-1) act[4*BKH+((size_t)(b0+n)*K+k)*H+rw]=u;
    }
    if(CL==1) __syncthreads(); else if(XCH) mb_wait(mbu,k&1); else csync();
    if(CL>1&&XCH&&tid==0) mb_expect(mbh,SPB*H*4);
    float a[SPB][8];
    #pragma unroll
    for(int n=0;n<SPB;n++)
      #pragma unroll
      for(int i=0;i<8;i++) a[n][i]=0.f;
    #pragma unroll
    for(int j=0;j<CJ;j++){
      float4 v[SPB];
      #pragma unroll
      for(int n=0;n<SPB;n++) v[n]=((const float4*)(us+n*H))[j*S+s];
      #pragma unroll
      for(int i=0;i<8;i++){
        const int x=i*CJ+j; float4 w;
        if(x<NR) w=wr[x<NR?x:0]; else if(x<NR+NSM) w=sw[(x-NR)*T+tid]; else w=ldv((const float4*)(wgl+((i&3)*H+(i>>2))*H+j*S*4));
        #pragma unroll
        for(int n=0;n<SPB;n++){ a[n][i]=fmaf(w.x,v[n].x,a[n][i]); a[n][i]=fmaf(w.y,v[n].y,a[n][i]); a[n][i]=fmaf(w.z,v[n].z,a[n][i]); a[n][i]=fmaf(w.w,v[n].w,a[n][i]); }
      }
    }
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float v=red8<S>(a[n],s)+bias;
      float ta=__shfl_sync(FULL,v,base|2);
      if(q==3) v=0.5f*fmaf(ta,dv[n],v);
      float t=tanh_(v);
      if(q==3) t=fmaf(0.5f,t,0.5f);
      float f1=__shfl_sync(FULL,t,base),f2=__shfl_sync(FULL,t,base|1),sg=__shfl_sync(FULL,t,base|3);
      float h=fmaf(sg,f2,f1*(1.f-sg));
      if(CL==1){ if(q==0&&s<8) hs[n*H+r]=h; }
      else if(s<8&&q<CL){ u32 ad=mapa(saddr(hs+n*H+r),q); if(XCH) st_asy(ad,h,mapa(mbh,q)); else st_rem(ad,h); }
      if(s<8) act[q*BKH+((size_t)(b0+n)*K+k)*H+r]=q==2?h:t;
    }
    if(CL==1) __syncthreads(); else if(XCH) mb_wait(mbh,k&1); else csync();
    #pragma unroll
    for(int n=0;n<SPB;n++){ xv[n]=xn[n]; dv[n]=dn[n]; }
  }
  if(CL>1) csync();
}
// D: [5][B*K][H] = d1,d2,da,db,dp
template<int CL,int T,int SPB,int NR,int NSM,int XCH>
__device__ __forceinline__ void bwd_body(const float*__restrict__ gH,const float*__restrict__ dt,const float*__restrict__ Wb,
   const float*__restrict__ Wh,const float*__restrict__ act,float*__restrict__ D,int B,int K){
  constexpr int R=H/CL,G=R/4,S=T/G,JH=H/S,JB=H/(4*S);
  extern __shared__ float4 sm4[];
  float*ds=(float*)sm4; float*ps=ds+SPB*4*H; float4*sw=sm4+SPB*5*H/4+1;
  u32 mbd=saddr(ps+SPB*H),mbp=mbd+8;
  const int tid=threadIdx.x,s=tid%S,q=(s>>2)&3;
  const u32 rank=CL>1?crank():0;
  const int c0=rank*R+(tid/S)*4,c=c0+(s&3);
  const int b0=(blockIdx.x/CL)*SPB; const float*wgl=Wh+s*4*H+c0;
  float4 wb[JB*4],wr[NR>0?NR:1];
  #pragma unroll
  for(int x=0;x<JB*4;x++) wb[x]=*(const float4*)(Wb+(size_t)(((x>>2)*S+s)*4+(x&3))*IN+I+c0);
  #pragma unroll
  for(int x=0;x<NR;x++) wr[x]=*(const float4*)(Wh+(size_t)(((x%JH)*S+s)*4+x/JH)*H+c0);
  #pragma unroll
  for(int x=NR;x<NR+NSM;x++) sw[(x-NR)*T+tid]=*(const float4*)(Wh+(size_t)(((x%JH)*S+s)*4+x/JH)*H+c0);
  const size_t BKH=(size_t)B*K*H;
  if(CL>1){ if(XCH&&tid==0){ mb_init(mbd); mb_init(mbp); asm volatile("fence.mbarrier_init.release.cluster;":::"memory"); } csync(); }
  else __syncthreads();
  float f1[SPB],f2[SPB],sg[SPB],u[SPB],g[SPB],dv[SPB],dh[SPB];
  #pragma unroll
  for(int n=0;n<SPB;n++){ size_t o=((size_t)(b0+n)*K+K-1)*H+c; f1[n]=act[o]; f2[n]=act[BKH+o]; sg[n]=act[3*BKH+o]; u[n]=act[4*BKH+o]; g[n]=gH[o]; dv[n]=dt[(b0+n)*K+K-1]; dh[n]=0.f; }
  for(int k=K-1;k>=0;k--){
    const u32 par=(K-1-k)&1;
    float uc[SPB];
    if(CL>1&&XCH&&tid==0) mb_expect(mbd,SPB*4*H*4);
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float gs=g[n]+dh[n],is=1.f-sg[n];
      float d1=gs*is*(1.f-f1[n]*f1[n]),d2=gs*sg[n]*(1.f-f2[n]*f2[n]),db=gs*(f2[n]-f1[n])*sg[n]*is;
      float d=q==0?d1:q==1?d2:q==2?dv[n]*db:db;
      float e1=0.f,e2=0.f,e3=0.f;
      if(XCH==2){ e1=__shfl_down_sync(FULL,d,1); e2=__shfl_down_sync(FULL,d,2); e3=__shfl_down_sync(FULL,d,3); }
      if(CL==1){ if(s<16) ds[n*4*H+q*H+c]=d; }
      else {
        #pragma unroll
        for(int p=0;p<CL;p++) if((p%(S/16))==(s>>4)){
          if(XCH==2){ if((s&3)==0) st_asy4(mapa(saddr(ds+n*4*H+q*H+c),p),d,e1,e2,e3,mapa(mbd,p)); continue; }
          u32 ad=mapa(saddr(ds+n*4*H+q*H+c),p); if(XCH) st_asy(ad,d,mapa(mbd,p)); else st_rem(ad,d); }
      }
      if(s<16) D[q*BKH+((size_t)(b0+n)*K+k)*H+c]=d;
      uc[n]=u[n];
      // next step's saved values
      size_t o=((size_t)(b0+n)*K+(k>0?k-1:0))*H+c;
      f1[n]=act[o]; f2[n]=act[BKH+o]; sg[n]=act[3*BKH+o]; u[n]=act[4*BKH+o]; g[n]=gH[o]; dv[n]=dt[(b0+n)*K+(k>0?k-1:0)];
    }
    if(CL==1) __syncthreads(); else if(XCH) mb_wait(mbd,par); else csync();
    if(CL>1&&XCH&&tid==0) mb_expect(mbp,SPB*H*4);
    float a[SPB][4];
    #pragma unroll
    for(int n=0;n<SPB;n++) a[n][0]=a[n][1]=a[n][2]=a[n][3]=0.f;
    #pragma unroll
    for(int j=0;j<JH;j++){
      float4 v[SPB];
      #pragma unroll
      for(int n=0;n<SPB;n++) v[n]=((const float4*)(ds+n*4*H))[j*S+s];
      #pragma unroll
      for(int e=0;e<4;e++){
        const int x=e*JH+j; float4 w;
        if(x<NR) w=wr[x<NR?x:0]; else if(x<NR+NSM) w=sw[(x-NR)*T+tid]; else w=ldv((const float4*)(wgl+(j*S*4+e)*H));
        #pragma unroll
        for(int n=0;n<SPB;n++){ float d=e==0?v[n].x:e==1?v[n].y:e==2?v[n].z:v[n].w;
          a[n][0]=fmaf(w.x,d,a[n][0]); a[n][1]=fmaf(w.y,d,a[n][1]); a[n][2]=fmaf(w.z,d,a[n][2]); a[n][3]=fmaf(w.w,d,a[n][3]); }
      }
    }
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float du=red4<S>(a[n][0],a[n][1],a[n][2],a[n][3],s);
      float un=uc[n]*(1.f/C1);
      float dp=du*(C1*C2)*(1.f-un*un);
      if(CL==1){ if(s<4) ps[n*H+c]=dp; }
      else if((s>>2)<CL){ u32 ad=mapa(saddr(ps+n*H+c),s>>2); if(XCH) st_asy(ad,dp,mapa(mbp,s>>2)); else st_rem(ad,dp); }
      if(s<4) D[4*BKH+((size_t)(b0+n)*K+k)*H+c]=dp;
    }
    if(CL==1) __syncthreads(); else if(XCH) mb_wait(mbp,par); else csync();
    #pragma unroll
    for(int n=0;n<SPB;n++){
      float b[4]={0.f,0.f,0.f,0.f};
      #pragma unroll
      for(int j=0;j<JB;j++){
        float4 v=((const float4*)(ps+n*H))[j*S+s];
        #pragma unroll
        for(int e=0;e<4;e++){ float d=e==0?v.x:e==1?v.y:e==2?v.z:v.w; float4 w=wb[j*4+e];
          b[0]=fmaf(w.x,d,b[0]); b[1]=fmaf(w.y,d,b[1]); b[2]=fmaf(w.z,d,b[2]); b[3]=fmaf(w.w,d,b[3]); }
      }
      dh[n]=red4<S>(b[0],b[1],b[2],b[3],s);
    }
  }
  if(CL>1) csync();
}
#define KERN(NAME,CL,T,SPB,NR,NSM,XCH,NRB,NSMB) \
extern "C" __global__ void CLD(CL) __launch_bounds__(T,1) fwd_##NAME(const float*xw,const float*dt,const float*Wb,const float*Wh,const float*bh,float*act,int B,int K){ fwd_body<CL,T,SPB,NR,NSM,XCH>(xw,dt,Wb,Wh,bh,act,B,K);} \
extern "C" __global__ void CLD(CL) __launch_bounds__(T,1) bwd_##NAME(const float*gH,const float*dt,const float*Wb,const float*Wh,const float*act,float*D,int B,int K){ bwd_body<CL,T,SPB,NRB,NSMB,XCH>(gH,dt,Wb,Wh,act,D,B,K);}
#define CLD(x) CLD_##x
#define CLD_1
#define CLD_2 __cluster_dims__(2,1,1)
#define CLD_4 __cluster_dims__(4,1,1)
//    name      CL  T  SPB NR NSM X
KERN(c1a,       1, 512, 1, 16,16, 0, 16,16)   // 96 weights/thread in registers, 2 heads in smem
KERN(c1b,       1, 512, 1, 12,20, 0, 12,20)
KERN(c1p2,      1, 512, 2, 12,20, 0, 12,20)   // two samples a block
KERN(c1c,       1, 512, 1, 14,18, 0, 14,18)
KERN(ada,       1, 512, 1, 13,11, 0, 13,11)   // regs + 88 KB smem + rest from L2
KERN(strm,      1, 512, 1,  0, 0, 0,  0, 0)   // W_b in regs, heads streamed from L2
KERN(r12,       1, 512, 1, 12, 0, 0, 12, 0)   // regs + L2 stream, no smem weights
KERN(c2b,       2, 512, 1, 16, 0, 0, 16, 0)
KERN(c2m,       2, 512, 1, 16, 0, 1, 16, 0)
KERN(c2p2m,     2, 512, 2, 16, 0, 1, 16, 0)
KERN(c2v,       2, 512, 1, 16, 0, 2, 16, 0)
KERN(c4v,       4, 256, 1, 16, 0, 2, 16, 0)
KERN(c4b,       4, 256, 1, 16, 0, 0, 16, 0)
KERN(c4m,       4, 256, 1, 16, 0, 1, 16, 0)
KERN(c4p4m,     4, 256, 4, 16, 0, 1, 16, 0)

#define KERN2(NAME,CL,T,SPB,NR,NSM,XCH) \
extern "C" __global__ void CLD(CL) __launch_bounds__(T,1) fw2_##NAME(const float*xw,const float*dt,const float*Wb,const float*Wh,const float*bh,float*act,int B,int K){ fwd2_body<CL,T,SPB,NR,NSM,XCH>(xw,dt,Wb,Wh,bh,act,B,K);}
KERN2(c1a, 1,512,1,16,16,0)
KERN2(c1c, 1,512,1,14,18,0)
KERN2(c1p2,1,512,2,12,20,0)
KERN2(c2m, 2,512,1,16,0,1)
KERN2(c4m, 4,256,1,16,0,1)
KERN2(ada, 1,512,1,13,11,0)
// xw[bk][r] = b_b[r] + sum_i Wb[r][i] x[bk][i];  grid BK/16, 256 threads
extern "C" __global__ void __launch_bounds__(256) xw_k(const float*__restrict__ x,const float*__restrict__ Wb,const float*__restrict__ bb,float*__restrict__ xw){
  __shared__ float4 xs[16*I/4];
  const int t=threadIdx.x,r=t&127,hf=t>>7; const size_t bk0=(size_t)blockIdx.x*16;
  if(t<16*I/4) xs[t]=((const float4*)(x+bk0*I))[t];
  float4 w[I/4];
  #pragma unroll
  for(int j=0;j<I/4;j++) w[j]=*(const float4*)(Wb+(size_t)r*IN+j*4);
  const float b=bb[r];
  __syncthreads();
  #pragma unroll
  for(int m=0;m<8;m++){
    const int row=hf*8+m; float a0=b,a1=0.f;
    #pragma unroll
    for(int j=0;j<I/4;j++){ float4 v=xs[row*(I/4)+j]; a0=fmaf(w[j].x,v.x,a0); a1=fmaf(w[j].y,v.y,a1); a0=fmaf(w[j].z,v.z,a0); a1=fmaf(w[j].w,v.w,a1); }
    xw[(bk0+row)*H+r]=a0+a1;
  }
}
// partial gradients P[chunk][PT]: heads [512][128], Wb [128][168], biases [640] (4 heads, then b_b). Also dx [BK][I].
// grid.x: 16 head tiles, 6 Wb tiles, 5 bias blocks, ceil(len/64) dx blocks; grid.y: chunks of len rows (len multiple of 16)
#define PT (512*128+128*168+640)
extern "C" __global__ void __launch_bounds__(256) grad_k(const float*__restrict__ D,const float*__restrict__ act,const float*__restrict__ x,const float*__restrict__ Wb,
    float*__restrict__ P,float*__restrict__ dx,int BK,int K,int len){
  __shared__ float4 sm[2*2*16*16+32];
  const int t=threadIdx.x,bx=blockIdx.x; const int k0=blockIdx.y*len;
  const size_t BKH=(size_t)BK*H; float*Pc=P+(size_t)blockIdx.y*PT;
  if(bx<22){
    const bool hd=bx<16; const int q=hd?bx>>2:4; const int y=bx-16; const int m0=hd?((bx>>1)&1)*64:(y/3)*64; const int n0=hd?(bx&1)*64:(y%3)*64;
    const float*A=D+q*BKH+m0; const float*U=act+4*BKH; const float*Hh=act+2*BKH;
    const int lr=t>>4,lc=(t&15)*4;
    const int cb=n0+lc;
    auto ldb=[&](int k)->float4{
      if(hd) return *(const float4*)(U+(size_t)k*H+cb);
      if(cb<I) return *(const float4*)(x+(size_t)k*I+cb);
      if(cb<IN&&(k%K)>0) return *(const float4*)(Hh+(size_t)(k-1)*H+cb-I);
      return make_float4(0.f,0.f,0.f,0.f); };
    float4 (*As)[16*16]=(float4(*)[16*16])sm; float4 (*Bs)[16*16]=(float4(*)[16*16])(sm+2*16*16);
    const int ty=t>>4,tx=t&15;
    float acc[4][4];
    #pragma unroll
    for(int i=0;i<4;i++){ acc[i][0]=acc[i][1]=acc[i][2]=acc[i][3]=0.f; }
    float4 ra=*(const float4*)(A+(size_t)(k0+lr)*H+lc),rb=ldb(k0+lr);
    As[0][t]=ra; Bs[0][t]=rb; __syncthreads();
    int bf=0;
    for(int kk=0;kk<len;kk+=16){
      if(kk+16<len){ ra=*(const float4*)(A+(size_t)(k0+kk+16+lr)*H+lc); rb=ldb(k0+kk+16+lr); }
      #pragma unroll
      for(int z=0;z<16;z++){
        float4 a=As[bf][z*16+ty],b=Bs[bf][z*16+tx];
        acc[0][0]=fmaf(a.x,b.x,acc[0][0]); acc[0][1]=fmaf(a.x,b.y,acc[0][1]); acc[0][2]=fmaf(a.x,b.z,acc[0][2]); acc[0][3]=fmaf(a.x,b.w,acc[0][3]);
        acc[1][0]=fmaf(a.y,b.x,acc[1][0]); acc[1][1]=fmaf(a.y,b.y,acc[1][1]); acc[1][2]=fmaf(a.y,b.z,acc[1][2]); acc[1][3]=fmaf(a.y,b.w,acc[1][3]);
        acc[2][0]=fmaf(a.z,b.x,acc[2][0]); acc[2][1]=fmaf(a.z,b.y,acc[2][1]); acc[2][2]=fmaf(a.z,b.z,acc[2][2]); acc[2][3]=fmaf(a.z,b.w,acc[2][3]);
        acc[3][0]=fmaf(a.w,b.x,acc[3][0]); acc[3][1]=fmaf(a.w,b.y,acc[3][1]); acc[3][2]=fmaf(a.w,b.z,acc[3][2]); acc[3][3]=fmaf(a.w,b.w,acc[3][3]);
      }
      bf^=1;
      if(kk+16<len){ As[bf][t]=ra; Bs[bf][t]=rb; }
      __syncthreads();
    }
    const int cc=n0+tx*4;
    #pragma unroll
    for(int i=0;i<4;i++){ const int rr=m0+ty*4+i; float4 v=make_float4(acc[i][0],acc[i][1],acc[i][2],acc[i][3]);
      if(hd) *(float4*)(Pc+(size_t)(q*H+rr)*H+cc)=v; else if(cc<IN) *(float4*)(Pc+512*128+(size_t)rr*IN+cc)=v; }
  } else if(bx<27){
    const int q=bx-22,c=t&127,hf=t>>7; float a=0.f; const float*A=D+q*BKH+c; const int n=len/2; float*fs=(float*)sm;
    #pragma unroll 8
    for(int k=0;k<n;k++) a+=A[(size_t)(k0+hf*n+k)*H];
    fs[t]=a; __syncthreads();
    if(t<128) Pc[512*128+128*168+q*128+c]=fs[c]+fs[c+128];
  } else {
    const int r0=(bx-27)*64; float*As=(float*)sm; // [64][33]
    float*Ws=As+64*33; // [32][40]
    const int row=t>>2,cg=(t&3)*10; float acc[10];
    #pragma unroll
    for(int i=0;i<10;i++) acc[i]=0.f;
    for(int rr=0;rr<H;rr+=32){
      for(int z=t;z<64*32;z+=256){ const int m=z>>5,e=z&31; As[m*33+e]=(r0+m<len)?D[4*BKH+(size_t)(k0+r0+m)*H+rr+e]:0.f; }
      for(int z=t;z<32*I;z+=256){ const int m=z/I,e=z%I; Ws[z]=Wb[(size_t)(rr+m)*IN+e]; }
      __syncthreads();
      #pragma unroll 8
      for(int e=0;e<32;e++){ const float a=As[row*33+e];
        #pragma unroll
        for(int i=0;i<10;i++) acc[i]=fmaf(a,Ws[e*I+cg+i],acc[i]); }
      __syncthreads();
    }
    if(r0+row<len){
      #pragma unroll
      for(int i=0;i<10;i++) dx[(size_t)(k0+r0+row)*I+cg+i]=acc[i]; }
  }
}
// second form: 128 threads, tile 128 x 64, 8 x 8 a thread. grid.x: 8 head tiles, 3 Wb tiles, 5 bias blocks, ceil(len/32) dx blocks; grid.y chunks
extern "C" __global__ void __launch_bounds__(128) grad2_k(const float*__restrict__ D,const float*__restrict__ act,const float*__restrict__ x,const float*__restrict__ Wb,
    float*__restrict__ P,float*__restrict__ dx,int BK,int K,int len){
  __shared__ float4 sm[(32*132+128*40)/4];
  const int t=threadIdx.x,bx=blockIdx.x; const int k0=blockIdx.y*len;
  const size_t BKH=(size_t)BK*H; float*Pc=P+(size_t)blockIdx.y*PT;
  if(bx<11){
    const bool hd=bx<8; const int q=hd?bx>>1:4; const int n0=hd?(bx&1)*64:(bx-8)*64;
    const float*A=D+q*BKH; const float*U=act+4*BKH; const float*Hh=act+2*BKH;
    const int lr=t>>5,lc=(t&31)*4,br=t>>4,cb=n0+(t&15)*4;
    auto ldb=[&](int k)->float4{
      if(hd) return *(const float4*)(U+(size_t)k*H+cb);
      if(cb<I) return *(const float4*)(x+(size_t)k*I+cb);
      if(cb<IN&&(k%K)>0) return *(const float4*)(Hh+(size_t)(k-1)*H+cb-I);
      return make_float4(0.f,0.f,0.f,0.f); };
    float4*As=sm; float4*Bs=sm+2*16*32; // As[2][16][32], Bs[2][16][16]
    const int ty=t>>3,tx=t&7;
    float acc[8][8];
    #pragma unroll
    for(int i=0;i<8;i++)
      #pragma unroll
      for(int j=0;j<8;j++) acc[i][j]=0.f;
    float4 ra[4],rb[2];
    #pragma unroll
    for(int i=0;i<4;i++) ra[i]=*(const float4*)(A+(size_t)(k0+lr+4*i)*H+lc);
    #pragma unroll
    for(int i=0;i<2;i++) rb[i]=ldb(k0+br+8*i);
    #pragma unroll
    for(int i=0;i<4;i++) As[(lr+4*i)*32+(t&31)]=ra[i];
    #pragma unroll
    for(int i=0;i<2;i++) Bs[(br+8*i)*16+(t&15)]=rb[i];
    __syncthreads();
    int bf=0;
    for(int kk=0;kk<len;kk+=16){
      if(kk+16<len){
        #pragma unroll
        for(int i=0;i<4;i++) ra[i]=*(const float4*)(A+(size_t)(k0+kk+16+lr+4*i)*H+lc);
        #pragma unroll
        for(int i=0;i<2;i++) rb[i]=ldb(k0+kk+16+br+8*i); }
      const float4*Ab=As+bf*512,*Bb=Bs+bf*256;
      #pragma unroll
      for(int z=0;z<16;z++){
        float4 a0=Ab[z*32+ty],a1=Ab[z*32+16+ty],b0=Bb[z*16+tx],b1=Bb[z*16+8+tx];
        const float av[8]={a0.x,a0.y,a0.z,a0.w,a1.x,a1.y,a1.z,a1.w},bv[8]={b0.x,b0.y,b0.z,b0.w,b1.x,b1.y,b1.z,b1.w};
        #pragma unroll
        for(int i=0;i<8;i++)
          #pragma unroll
          for(int j=0;j<8;j++) acc[i][j]=fmaf(av[i],bv[j],acc[i][j]);
      }
      bf^=1;
      if(kk+16<len){
        #pragma unroll
        for(int i=0;i<4;i++) As[bf*512+(lr+4*i)*32+(t&31)]=ra[i];
        #pragma unroll
        for(int i=0;i<2;i++) Bs[bf*256+(br+8*i)*16+(t&15)]=rb[i]; }
      __syncthreads();
    }
    #pragma unroll
    for(int i=0;i<8;i++){ const int rr=(i>>2)*64+ty*4+(i&3);
      #pragma unroll
      for(int h=0;h<2;h++){ const int cc=n0+h*32+tx*4; float4 v=make_float4(acc[i][h*4],acc[i][h*4+1],acc[i][h*4+2],acc[i][h*4+3]);
        if(hd) *(float4*)(Pc+(size_t)(q*H+rr)*H+cc)=v; else if(cc<IN) *(float4*)(Pc+512*128+(size_t)rr*IN+cc)=v; } }
  } else if(bx<16){
    const int q=bx-11; float a=0.f; const float*A=D+q*BKH+(size_t)k0*H+t;
    #pragma unroll 32
    for(int k=0;k<len;k++) a+=A[(size_t)k*H];
    Pc[512*128+128*168+q*128+t]=a;
  } else {
    const int r0=(bx-16)*32; float*As=(float*)sm; float*Ws=As+32*132;
    { float4 v[8];
      #pragma unroll
      for(int i=0;i<8;i++){ const int z=t+128*i,m=z>>5; v[i]=(r0+m<len)?*(const float4*)(D+4*BKH+(size_t)(k0+r0+m)*H+(z&31)*4):make_float4(0.f,0.f,0.f,0.f); }
      float4 w[10];
      #pragma unroll
      for(int i=0;i<10;i++) w[i]=*(const float4*)(Wb+(size_t)((t+128*i)/10)*IN+((t+128*i)%10)*4);
      #pragma unroll
      for(int i=0;i<8;i++){ const int z=t+128*i; *(float4*)(As+(z>>5)*132+(z&31)*4)=v[i]; }
      #pragma unroll
      for(int i=0;i<10;i++) ((float4*)Ws)[t+128*i]=w[i]; }
    __syncthreads();
    const int hf=t>>6,rg=(t>>3)&7,cg=(t&7)*5; float acc[4][5];
    #pragma unroll
    for(int i=0;i<4;i++)
      #pragma unroll
      for(int j=0;j<5;j++) acc[i][j]=0.f;
    #pragma unroll 2
    for(int e=0;e<64;e+=4){
      float4 a[4];
      #pragma unroll
      for(int i=0;i<4;i++) a[i]=*(const float4*)(As+(rg*4+i)*132+hf*64+e);
      #pragma unroll
      for(int y=0;y<4;y++)
        #pragma unroll
        for(int j=0;j<5;j++){ const float w=Ws[(hf*64+e+y)*I+cg+j];
          #pragma unroll
          for(int i=0;i<4;i++){ const float av=y==0?a[i].x:y==1?a[i].y:y==2?a[i].z:a[i].w; acc[i][j]=fmaf(av,w,acc[i][j]); } }
    }
    __syncthreads();
    if(hf){
      #pragma unroll
      for(int i=0;i<4;i++)
        #pragma unroll
        for(int j=0;j<5;j++) As[(rg*4+i)*I+cg+j]=acc[i][j]; }
    __syncthreads();
    if(!hf){
      #pragma unroll
      for(int i=0;i<4;i++) if(r0+rg*4+i<len)
        #pragma unroll
        for(int j=0;j<5;j++) dx[(size_t)(k0+r0+rg*4+i)*I+cg+j]=acc[i][j]+As[(rg*4+i)*I+cg+j]; }
  }
}
extern "C" __global__ void __launch_bounds__(256) reduce_k(const float*__restrict__ P,float*__restrict__ G,int ns){
  const int i=blockIdx.x*256+threadIdx.x; if(i>=PT/4) return;
  float4 a=((const float4*)P)[i];
  #pragma unroll 8
  for(int c=1;c<ns;c++){ float4 v=((const float4*)(P+(size_t)c*PT))[i]; a.x+=v.x; a.y+=v.y; a.z+=v.z; a.w+=v.w; }
  ((float4*)G)[i]=a;
}
