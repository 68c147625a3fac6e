// In the place of CuPy's complex numbers, which lie on Thrust's headers: the standard library's.
#pragma once

#include <complex>

using std::abs;
using std::arg;
using std::complex;
using std::conj;
using std::exp;
using std::imag;
using std::log;
using std::norm;
using std::pow;
using std::real;
using std::sqrt;

namespace thrust {
using std::complex;
}
