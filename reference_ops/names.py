"""Names that CUDA C++ or its headers declare.

Dims and parameters of foreign tasks are renamed if they have such a name. A kernel may declare each dim and each
parameter as a constant, which fails to compile for such a name. A test compiles a constant for every word in CUDA's
headers, with NVRTC and for the emulated device, and compares the failures with `TAKEN`.
"""

KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
    const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false
    float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
    while xor xor_eq
"""
TYPES = """
    List clock_t dim3 half half2 int32_t int64_t intptr_t libraryPropertyType ptrdiff_t size_t uchar uint uint16_t
    uint32_t uint64_t uintptr_t ulong ushort va_list
"""
VALUES = """
    HUGE_VAL HUGE_VALF INFINITY INT_MAX INT_MIN LLONG_MAX LLONG_MIN LONG_MIN MAJOR_VERSION MINOR_VERSION M_1_PI M_2_PI
    M_2_SQRTPI M_E M_LN10 M_LN2 M_LOG10E M_LOG2E M_PI M_PI_2 M_PI_4 M_SQRT1_2 M_SQRT2 NAN NULL PATCH_LEVEL SCHAR_MAX
    SCHAR_MIN SHRT_MAX SHRT_MIN SIZE_MAX UCHAR_MAX UINT_MAX ULLONG_MAX USHRT_MAX WARP_SZ blockDim blockIdx gridDim std
    threadIdx warpSize
"""
# Most of these also exist with an `f` at the end.
FUNCTIONS = """
    abs acos acosh all any asin asinh atan atan2 atanh ballot cbrt ceil clock clock64 copysign cos cosh cospi
    cyl_bessel_i0 cyl_bessel_i1 dadd dmul double2int double2ll double2uint double2ull dsub erf erfc erfcinv erfcx erfinv
    exp exp10 exp2 expm1 fabs fdim fdivide float2double floor fma fmax fmin fmod free frexp hypot ilogb int2double
    isfinite isinf isnan isnormal j0 j1 jn labs ldexp lgamma ll2double llabs llmax llmin llrint llround log log10 log1p
    log2 logb lrint lround malloc max memcmp memcpy memmove memset min modf nan nearbyint nextafter norm norm3d norm4d
    normcdf normcdfinv pow printf rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d round rsqrt scalbln scalbn
    signbit sin sincos sincospi sinh sinpi sqrt syncthreads_and syncthreads_count syncthreads_or tan tanh tgamma trunc
    uint2double ull2double ullmax ullmin umax umin y0 y1 yn
"""
OF_HALVES = "ceil cos exp exp10 exp2 floor log log10 log2 rcp rint rsqrt sin sqrt tanh tanh_approx trunc"
TEXTURES = """
    surf1DLayeredread surf1DLayeredwrite surf1Dread surf1Dwrite surf2DLayeredread surf2DLayeredwrite surf2Dread
    surf2Dwrite surf3Dread surf3Dwrite surfCubemapLayeredread surfCubemapLayeredwrite surfCubemapread surfCubemapwrite
    tex1D tex1DGrad tex1DLayered tex1DLayeredGrad tex1DLayeredLod tex1DLod tex1Dfetch tex2D tex2DGrad tex2DLayered
    tex2DLayeredGrad tex2DLayeredLod tex2DLod tex2Dgather tex3D tex3DGrad tex3DLod texCubemap texCubemapGrad
    texCubemapLayered texCubemapLayeredGrad texCubemapLayeredLod texCubemapLod
"""
ATOMICS = "Add And CAS Dec Exch Inc Max Min Or Sub Xor"
SCALARS = "char uchar short ushort int uint long ulong longlong ulonglong float double"
WIDE_SCALARS = "long ulong longlong ulonglong double"  # names of vector types with a given alignment

_VECTORS = {
    *(f"{scalar}{size}" for scalar in SCALARS.split() for size in range(1, 5)),
    *(f"{scalar}4_{alignment}a" for scalar in WIDE_SCALARS.split() for alignment in (16, 32)),
}
TAKEN = frozenset({
    *KEYWORDS.split(), *TYPES.split(), *VALUES.split(), *TEXTURES.split(), *_VECTORS,
    *(f"{name}{ending}" for name in FUNCTIONS.split() for ending in ("", "f")),
    *(f"{half}{name}" for name in OF_HALVES.split() for half in ("h", "h2")),
    *(f"atomic{name}{scope}" for name in ATOMICS.split() for scope in ("", "_block", "_system")),
    *(f"make_{name}" for name in (*_VECTORS, "half2", "bfloat162")),
})  # fmt: skip
