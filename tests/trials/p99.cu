// p99 of |x|, exact counts, no atomics, second round. key16 = bits(|x|)>>15 (8 exponent + 8 mantissa bits). Non-finite: exponent 255.
// Rank t = n_finite/100, 0-based from the top. The grid (gridDim.x blocks of 512) is a function of n alone.
typedef unsigned int u32; typedef unsigned long long u64;
#define FULL 0xffffffffu
#define W 512
#define RS (W+4)
#define KINF 0xFF00u
__device__ __forceinline__ u32 kof(float f){ return (__float_as_uint(f)&0x7fffffffu)>>15; }
__device__ __forceinline__ float ans(u32 b,u32 pos,u32 cnt){
  float lo=__uint_as_float(b<<15),hi=(b+1>=KINF)?3.402823466e38f:__uint_as_float((b+1)<<15);
  float fr=((float)pos+0.5f)/(float)cnt; return fmaf(-fr,hi-lo,hi); }
__device__ __forceinline__ void wslot(u32*slot,float a,u32 nf,u32 bin,u32 ps,u32 st){ // ps, st: slot[1], slot[2] read early
  float alpha=0.1f,p=__uint_as_float(ps);
  slot[0]=__float_as_uint(a); slot[1]=__float_as_uint(st?fmaf(alpha,a-p,p):a); slot[2]=1u; slot[3]=nf; slot[4]=bin; }
__device__ __forceinline__ void addrow(u32*row,u32 d,bool in,int l){ // one warp, its own row
  u32 m=__match_any_sync(FULL,in?d:0xffffffffu); if(in&&l==__ffs(m)-1) row[d]+=__popc(m); __syncwarp(); }
// exclusive prefix from the top: thread i holds bin m-1-i. one barrier.
__device__ __forceinline__ u32 topexc(u32 v,u32*wt){
  const int t=threadIdx.x,l=t&31,w=t>>5; u32 s=v;
  #pragma unroll
  for(int o=1;o<32;o<<=1){ u32 y=__shfl_up_sync(FULL,s,o); if(l>=o) s+=y; }
  if(l==31) wt[w]=s;
  __syncthreads();
  u32 y=l<w?wt[l]:0u; return __reduce_add_sync(FULL,y)+s-v; }
// S: bracket from 4096 jittered samples: two radix levels (exponent, mantissa), two ranks. 1 block, 512 threads, 8 keys each.
extern "C" __global__ void __launch_bounds__(512) p_sample(const float*__restrict__ x,u32 n,u32*__restrict__ br){
  __shared__ u32 A[16][256],Bc[16][256]; __shared__ u32 wt[16],wu[16],sh[12];
  const u32 t=threadIdx.x,l=t&31,w=t>>5; u32 k[8]; const u32 st=n/4096u;
  #pragma unroll
  for(int i=0;i<8;i++){ u32 id=t+512u*i; u32 j=st>1u?(u32)(((u64)(id*2654435761u)*st)>>32):0u; k[i]=kof(x[(u64)id*st+j]); }
  #pragma unroll
  for(int i=0;i<8;i++){ A[w][l+32*i]=0; Bc[w][l+32*i]=0; }
  __syncwarp();
  #pragma unroll
  for(int i=0;i<8;i++) addrow(A[w],k[i]>>8,true,l);
  __syncthreads();
  u32 v=0; const u32 b=255u-(t&255u);
  if(t<256){
    #pragma unroll
    for(int z=0;z<16;z++){ v+=A[z][b]; A[z][b]=0; }
    if(t==0) sh[8]=v; }
  u32 e=topexc(v,wt);
  const u32 nf=sh[8],m=4096u-nf,tt=m/100u; u32 sd=4; while(sd*sd<tt) sd++; sd*=4u;
  const u32 rh=nf+(tt>sd?tt-sd:0u); u32 rl=nf+tt+sd+1u; if(rl>4095u) rl=4095u;
  if(t<256){ if(e<=rl&&rl<e+v){ sh[0]=b; sh[1]=rl-e; } if(e<=rh&&rh<e+v){ sh[2]=b; sh[3]=rh-e; } }
  if(t==0&&rh>=4096u){ sh[2]=sh[0]=0; sh[1]=sh[3]=0; }
  __syncthreads();
  const u32 el=sh[0],eh=sh[2],pl=sh[1],phh=sh[3];
  #pragma unroll
  for(int i=0;i<8;i++){ const bool il=(k[i]>>8)==el,ih=(k[i]>>8)==eh&&eh!=el;
    if(__any_sync(FULL,il)) addrow(A[w],k[i]&255u,il,l);
    if(__any_sync(FULL,ih)) addrow(Bc[w],k[i]&255u,ih,l); }
  __syncthreads();
  v=0;
  if(t<256||eh==el){
    #pragma unroll
    for(int z=0;z<16;z++) v+=A[z][b];
  } else {
    #pragma unroll
    for(int z=0;z<16;z++) v+=Bc[z][b]; }
  // two scans at once: warps 0..7 low rank, 8..15 high rank
  u32 s=v;
  #pragma unroll
  for(int o=1;o<32;o<<=1){ u32 y=__shfl_up_sync(FULL,s,o); if(l>=o) s+=y; }
  if(l==31) wu[w]=s;
  __syncthreads();
  { const u32 w0=w&8u; u32 y=(l>=w0&&l<w)?wu[l]:0u; e=__reduce_add_sync(FULL,y)+s-v; }
  if(t<256){ if(e<=pl&&pl<e+v) sh[4]=el*256u+b; } else if(e<=phh&&phh<e+v) sh[5]=eh*256u+b;
  __syncthreads();
  if(t==0){ u32 xl=rh>=4096u?0u:sh[4],xh=rh>=4096u?0u:sh[5]; if(xh>=KINF) xh=KINF-1; if(xl>xh) xl=xh;
    if(xh-xl+1u>W){ u32 mid=(xl+xh)/2u; if(mid>xl+W/2) xl=mid-W/2; xh=xl+W-1u; if(xh>=KINF) xh=KINF-1u; }
    br[0]=xl; br[1]=xh-xl+1u; }
}
__device__ __forceinline__ void range(u32 n4,u32&i0,u32&i1){ i0=(u32)((u64)n4*blockIdx.x/gridDim.x); i1=(u32)((u64)n4*(blockIdx.x+1)/gridDim.x); }
// walk over this block's float4s with the next four in flight; f(float, valid)
template<class F> __device__ __forceinline__ void walk(const float*__restrict__ x,u32 n,F f){
  const u32 t=threadIdx.x,n4=n>>2; u32 i0,i1; range(n4,i0,i1); const float4*x4=(const float4*)x;
  u32 i=i0+t; const u32 full=(i1-i0)/2048u;
  float4 a,b,c,d; if(full){ a=__ldcs(x4+i);b=__ldcs(x4+i+512);c=__ldcs(x4+i+1024);d=__ldcs(x4+i+1536); }
  for(u32 z=0;z<full;z++){ i+=2048u; float4 e=a,g=b,h=c,k=d;
    if(z+1<full){ a=__ldcs(x4+i);b=__ldcs(x4+i+512);c=__ldcs(x4+i+1024);d=__ldcs(x4+i+1536); }
    f(e.x,true);f(e.y,true);f(e.z,true);f(e.w,true); f(g.x,true);f(g.y,true);f(g.z,true);f(g.w,true);
    f(h.x,true);f(h.y,true);f(h.z,true);f(h.w,true); f(k.x,true);f(k.y,true);f(k.z,true);f(k.w,true); }
  { float4 v[4]; const u32 left=i1-i0-full*2048u;
    #pragma unroll
    for(int z=0;z<4;z++) v[z]=(t+512u*z<left)?__ldcs(x4+i+512u*z):make_float4(0.f,0.f,0.f,0.f);
    #pragma unroll
    for(int z=0;z<4;z++) if(512u*z+(t&~31u)<left){ bool o=t+512u*z<left; f(v[z].x,o);f(v[z].y,o);f(v[z].z,o);f(v[z].w,o); } }
  if(blockIdx.x==gridDim.x-1&&(n&3u)&&t<32){ u32 j=n4*4u+t; bool o=j<n; f(o?x[j]:0.f,o); }
}
// M: rows [grid][RS]: [0] above, [1] nonfinite, [4+i] window bins
extern "C" __global__ void __launch_bounds__(512,2) p_main(const float*__restrict__ x,u32 n,const u32*__restrict__ br,u32*__restrict__ rows){
  __shared__ u32 cn[16][W]; __shared__ u32 sa[16],sn[16];
  const u32 t=threadIdx.x,w=t>>5,l=t&31; const u32 lo=br[0],span=br[1];
  for(u32 i=l;i<span;i+=32) cn[w][i]=0;
  __syncwarp();
  u32 ab=0,nf=0;
  walk(x,n,[&](float f,bool ok){ u32 a=kof(f); bool up=ok&&a>=lo;
    if(__any_sync(FULL,up)){ u32 d=a-lo; bool in=up&&d<span; nf+=up&&a>=KINF; ab+=up&&!in;
      if(__any_sync(FULL,in)) addrow(cn[w],d,in,l); } });
  ab=__reduce_add_sync(FULL,ab-nf); nf=__reduce_add_sync(FULL,nf); if(l==0){ sa[w]=ab; sn[w]=nf; }
  __syncthreads();
  u32*r=rows+(u64)blockIdx.x*RS;
  if(t<((span+127u)&~127u)){ u32 s=0; if(t<span){
    #pragma unroll
    for(int z=0;z<16;z++) s+=cn[z][t]; } r[4+t]=s; }
  if(t<4){ u32 s=0; if(t<2) for(int z=0;z<16;z++) s+=t?sn[z]:sa[z]; r[t]=s; }
}
// F: 1 block, 1024 threads: 32 parts x 32 uint4 columns a round
extern "C" __global__ void __launch_bounds__(1024,1) p_final(const u32*__restrict__ rows,const u32*__restrict__ br,u32 n,u32 nb,u32*__restrict__ slot,u32*__restrict__ st){
  __shared__ uint4 part[32][33]; __shared__ u32 wt[32],tot[RS+128]; __shared__ u32 ok;
  const u32 t=threadIdx.x,c=t&31,p=t>>5; const u32 lo=br[0],span=br[1],ps=slot[1],ss=slot[2];
  if(t==0) ok=0;
  for(u32 c0=0;c0*4<4+span;c0+=32){
    uint4 s=make_uint4(0,0,0,0);
    if((c0+c)*4<4+((span+127u)&~127u)){
      #pragma unroll
      for(int z=0;z<9;z++) if(p+32u*z<nb){ uint4 v=*(const uint4*)(rows+(u64)(p+32u*z)*RS+(c0+c)*4); s.x+=v.x; s.y+=v.y; s.z+=v.z; s.w+=v.w; } }
    part[p][c]=s;
    __syncthreads();
    if(t<128){ u32 a=0; const u32*q=(const u32*)part;
      #pragma unroll
      for(int z=0;z<32;z++) a+=q[z*132+t]; tot[c0*4+t]=a; }
    __syncthreads();
  }
  const u32 ab=tot[0],nf=tot[1],nn=n-nf,rank=nn/100u;
  const u32 v=t<span?tot[4+span-1-t]:0u; const u32 e=topexc(v,wt)+ab;
  if(t<span&&e<=rank&&rank<e+v&&nn){ u32 b=lo+span-1-t; wslot(slot,ans(b,rank-e,v),nf,b,ps,ss); ok=1; }
  __syncthreads();
  if(t==0){ if(nn==0) slot[3]=nf; st[0]=nn==0||ok; }
}
__device__ __forceinline__ void hout(u32 (*cn)[256],u32*rows){ const u32 t=threadIdx.x; __syncthreads();
  if(t<256){ u32 s=0;
    #pragma unroll
    for(int z=0;z<16;z++) s+=cn[z][t]; rows[blockIdx.x*256+t]=s; } }
// sum nb rows of 256 with uint4: tot[256]
template<int TH> __device__ __forceinline__ void rsum(const u32*__restrict__ rows,u32 nb,uint4*part,u32*tot){
  const u32 t=threadIdx.x,c=t&63,p=t>>6; uint4 s=make_uint4(0,0,0,0);
  #pragma unroll 9
  for(u32 r=p;r<nb;r+=TH/64){ uint4 v=((const uint4*)rows)[r*64+c]; s.x+=v.x; s.y+=v.y; s.z+=v.z; s.w+=v.w; }
  part[t]=s; __syncthreads();
  if(t<256){ u32 a=0; const u32*q=(const u32*)part;
    #pragma unroll
    for(int z=0;z<TH/64;z++) a+=q[z*256+t]; tot[t]=a; }
  __syncthreads(); }
extern "C" __global__ void __launch_bounds__(512,2) p_r1(const float*__restrict__ x,u32 n,u32*__restrict__ rows,const u32*__restrict__ st){
  if(st[0]) return;
  __shared__ u32 cn[16][256]; const u32 t=threadIdx.x,w=t>>5,l=t&31;
  #pragma unroll
  for(int i=0;i<8;i++) cn[w][l+32*i]=0;
  __syncwarp();
  walk(x,n,[&](float f,bool ok){ addrow(cn[w],kof(f)>>8,ok,l); });
  hout(cn,rows);
}
extern "C" __global__ void __launch_bounds__(512,2) p_r2(const float*__restrict__ x,u32 n,const u32*__restrict__ r1,u32*__restrict__ rows,u32*__restrict__ meta,const u32*__restrict__ st){
  if(st[0]) return;
  __shared__ u32 cn[16][256]; __shared__ uint4 part[512]; __shared__ u32 wt[16],tot[256],sh[2];
  const u32 t=threadIdx.x,w=t>>5,l=t&31;
  #pragma unroll
  for(int i=0;i<8;i++) cn[w][l+32*i]=0;
  if(t<2) sh[t]=0;
  rsum<512>(r1,gridDim.x,part,tot);
  const u32 nf=tot[255],nn=n-nf,rank=nn/100u; const u32 v=t<255?tot[254-t]:0u; const u32 e=topexc(v,wt);
  if(t<255&&e<=rank&&rank<e+v){ sh[0]=254-t; sh[1]=rank-e; }
  __syncthreads();
  const u32 ex=sh[0];
  if(blockIdx.x==0&&t==0){ meta[0]=ex; meta[1]=sh[1]; meta[2]=nf; meta[3]=nn; }
  walk(x,n,[&](float f,bool ok){ u32 a=kof(f); bool in=ok&&(a>>8)==ex; if(__any_sync(FULL,in)) addrow(cn[w],a&255u,in,l); });
  hout(cn,rows);
}
extern "C" __global__ void __launch_bounds__(1024,1) p_r3(const u32*__restrict__ rows,const u32*__restrict__ meta,u32 nb,u32*__restrict__ slot,const u32*__restrict__ st){
  if(st[0]) return;
  __shared__ uint4 part[1024]; __shared__ u32 wt[32],tot[256]; const u32 t=threadIdx.x;
  const u32 ex=meta[0],rank=meta[1],nf=meta[2],nn=meta[3],ps=slot[1],ss=slot[2];
  rsum<1024>(rows,nb,part,tot);
  const u32 v=t<256?tot[255-t]:0u; const u32 e=topexc(v,wt);
  if(nn==0){ if(t==0) slot[3]=nf; } else if(t<256&&e<=rank&&rank<e+v){ u32 b=(ex<<8)+255-t; wslot(slot,ans(b,rank-e,v),nf,b,ps,ss); }
}
// C: one block, n <= 4096*J/2 (512 threads, J float4 each): both radix levels in shared rows, slot write included
template<int J> __device__ __forceinline__ void small_body(const float*__restrict__ x,u32 n,u32*__restrict__ slot){
  __shared__ u32 A[16][256],Bc[16][256]; __shared__ u32 wt[16],wu[16],sh[3];
  const u32 t=threadIdx.x,l=t&31,w=t>>5; const u32 ps=slot[1],ss=slot[2]; float4 v4[J];
  #pragma unroll
  for(int j=0;j<J;j++){ const u32 i=j*512u+t; float4 v;
    if(i*4+3<n) v=((const float4*)x)[i]; else { v.x=i*4<n?x[i*4]:0.f; v.y=i*4+1<n?x[i*4+1]:0.f; v.z=i*4+2<n?x[i*4+2]:0.f; v.w=0.f; } v4[j]=v; }
  #pragma unroll
  for(int i=0;i<8;i++){ A[w][l+32*i]=0; Bc[w][l+32*i]=0; }
  if(t<3) sh[t]=0;
  __syncwarp();
  #pragma unroll
  for(int j=0;j<J;j++){ const u32 i=(j*512u+t)*4; if((j*512u+(t&~31u))*4<n){
    addrow(A[w],kof(v4[j].x)>>8,i<n,l); addrow(A[w],kof(v4[j].y)>>8,i+1<n,l); addrow(A[w],kof(v4[j].z)>>8,i+2<n,l); addrow(A[w],kof(v4[j].w)>>8,i+3<n,l); } }
  __syncthreads();
  u32 v=0; if(t<256){
    #pragma unroll
    for(int z=0;z<16;z++) v+=A[z][255-t]; if(t==0) sh[2]=v; }
  u32 e=topexc(v,wt); const u32 nf=sh[2],nn=n-nf,rank=nf+nn/100u;
  if(t>0&&t<256&&e<=rank&&rank<e+v){ sh[0]=255-t; sh[1]=rank-e; }
  __syncthreads();
  if(nn==0){ if(t==0) slot[3]=nf; return; }
  const u32 ex=sh[0],rk=sh[1];
  auto two=[&](float f,bool ok){ u32 a=kof(f); bool in=ok&&(a>>8)==ex; if(__any_sync(FULL,in)) addrow(Bc[w],a&255u,in,l); };
  #pragma unroll
  for(int j=0;j<J;j++){ const u32 i=(j*512u+t)*4; two(v4[j].x,i<n); two(v4[j].y,i+1<n); two(v4[j].z,i+2<n); two(v4[j].w,i+3<n); }
  __syncthreads();
  v=0; if(t<256){
    #pragma unroll
    for(int z=0;z<16;z++) v+=Bc[z][255-t]; }
  e=topexc(v,wu);
  if(t<256&&e<=rk&&rk<e+v){ u32 b=(ex<<8)+255-t; wslot(slot,ans(b,rk-e,v),nf,b,ps,ss); }
}
extern "C" __global__ void __launch_bounds__(512,1) p_small2(const float*x,u32 n,u32*slot){ small_body<2>(x,n,slot); }
extern "C" __global__ void __launch_bounds__(512,1) p_small8(const float*x,u32 n,u32*slot){ small_body<8>(x,n,slot); }
extern "C" __global__ void noop_k(){}
