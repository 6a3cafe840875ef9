// The types of an entry's parameters, deduced for the device, and the way to call it.
#pragma once

namespace evolve {

struct Parameter {
    int kind;  // p: pointer, i: signed, u: unsigned, f: floating point, l: List, t: tensor map, ?: anything else
    int bytes;
};

struct Entry {
    const char* name;
    void (*call)(void**);
    int count;
    const Parameter* parameters;
    unsigned cluster;  // number of blocks of a cluster along x, or 0
};

template <class T> struct Kind { static constexpr int value = '?'; };
template <class T> struct Kind<T*> { static constexpr int value = 'p'; };
template <class T, int N> struct Kind<List<T*, N>> { static constexpr int value = 'l'; };
template <> struct Kind<CUtensorMap> { static constexpr int value = 't'; };
template <> struct Kind<float> { static constexpr int value = 'f'; };
template <> struct Kind<double> { static constexpr int value = 'f'; };
template <> struct Kind<bool> { static constexpr int value = 'u'; };
template <> struct Kind<char> { static constexpr int value = 'i'; };
template <> struct Kind<signed char> { static constexpr int value = 'i'; };
template <> struct Kind<short> { static constexpr int value = 'i'; };
template <> struct Kind<int> { static constexpr int value = 'i'; };
template <> struct Kind<long> { static constexpr int value = 'i'; };
template <> struct Kind<long long> { static constexpr int value = 'i'; };
template <> struct Kind<unsigned char> { static constexpr int value = 'u'; };
template <> struct Kind<unsigned short> { static constexpr int value = 'u'; };
template <> struct Kind<unsigned> { static constexpr int value = 'u'; };
template <> struct Kind<unsigned long> { static constexpr int value = 'u'; };
template <> struct Kind<unsigned long long> { static constexpr int value = 'u'; };

template <int... I> struct Places {};
template <int N, int... I> struct Counted : Counted<N - 1, N - 1, I...> {};
template <int... I> struct Counted<0, I...> { using places = Places<I...>; };

template <class F> struct Signature;
template <class... P> struct Signature<void(P...)> {
    static constexpr int count = sizeof...(P);
    static constexpr Parameter parameters[count + 1] = {{Kind<P>::value, int(sizeof(P))}..., {0, 0}};
    template <void (*entry)(P...), int... I> static void call_with(void** arguments, Places<I...>) {
        entry(*static_cast<P*>(arguments[I])...);
    }
    template <void (*entry)(P...)> static void call(void** arguments) {
        call_with<entry>(arguments, typename Counted<count>::places());
    }
};

}  // namespace evolve

namespace evolve {
constexpr unsigned cluster_of() { return 0; }
constexpr unsigned cluster_of(unsigned x, unsigned y = 1, unsigned z = 1) { return y == 1 && z == 1 ? x : ~0u; }
}  // namespace evolve

#define EVOLVE_ENTRY(name, ...) \
    {#name, &evolve::Signature<decltype(name)>::call<&name>, evolve::Signature<decltype(name)>::count, \
     evolve::Signature<decltype(name)>::parameters, evolve::cluster_of(__VA_ARGS__)}
