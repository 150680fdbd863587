"""The Hopper emitter: TMA, mbarrier pipelines, warp-specialised `wgmma` kernels (sm_90a)."""

if __name__ != "cute_attn.hopper":
    raise ImportError("this directory is the package cute_attn.hopper; import it by that name")
