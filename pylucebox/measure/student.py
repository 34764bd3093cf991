"""Student's t distribution without scipy: the quantile that every interval here needs."""

import math

MAX_TERMS = 500
MAX_STEPS = 200
TINY = 1e-300


def t_quantile(probability: float, freedom: float) -> float:
    """Return the t value below which `probability` of Student's distribution lies.

    probability: in (0, 1). freedom: degrees of freedom, above 0, whole or not (Welch's are not).
    Newton's steps on `t_cdf`, kept inside a bracket; relative error below 1e-9 up to 1e5 degrees of freedom.
    Raises ValueError outside those ranges.
    """
    if not 0 < probability < 1 or not freedom > 0:
        raise ValueError(f"no t quantile for probability {probability}, {freedom} degrees of freedom")
    if probability <= 0.5:
        return 0.0 if probability == 0.5 else -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        low, high = high, 2 * high
    t = (low + high) / 2
    for _ in range(MAX_STEPS):
        excess = t_cdf(t, freedom) - probability
        low, high = (t, high) if excess < 0 else (low, t)
        newton = t - excess / t_density(t, freedom)
        better = newton if low < newton < high else (low + high) / 2
        if abs(better - t) <= 1e-14 * t:
            break
        t = better
    return t


def t_density(t: float, freedom: float) -> float:
    """Return the density of Student's distribution at `t`."""
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(log_scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def t_cdf(t: float, freedom: float) -> float:
    """Return the share of Student's distribution that lies below `t`."""
    square = t * t
    if square < freedom:  # from the middle, where the tail's complement would lose digits
        middle = 0.5 * incomplete_beta(square / (freedom + square), 0.5, freedom / 2)
        return 0.5 + math.copysign(middle, t)
    tail = 0.5 * incomplete_beta(freedom / (freedom + square), freedom / 2, 0.5)
    return 1 - tail if t > 0 else tail


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), for x in [0, 1] and a, b above 0."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction below converges fast on the other side only
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of I_x(a, b) from the front (Lentz's method).

    Source: NIST Digital Library of Mathematical Functions, 8.17.22.
    """
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or TINY)
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or TINY)
            c = 1 + term / c or TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
