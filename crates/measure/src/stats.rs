//! Medians, deviations and confidence bounds. Pure functions; values that are not a number must be left out by the caller.
//!
//! Two ways to bound the centre of a sample are offered, see [`Method`]:
//!
//! - *Median*, by the sign test turned round: the k-th smallest and k-th largest of n values enclose the true median, with
//!   k from the binomial distribution with p = 1/2 (W. J. Conover, "Practical Nonparametric Statistics", 3rd edition, 1999,
//!   section 3.2). It assumes nothing about the shape of the noise, so a round disturbed by another program moves it little.
//!   It needs at least 5 values for a one-sided 95 % bound.
//! - *Mean*, by Student's t ("The probable error of a mean", Biometrika 6, 1908). Narrower when the noise is about normal;
//!   one bad round widens it much.

/// How the centre of a sample is estimated and bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Median with bounds from the sign test: free of assumptions about the distribution.
    #[default]
    Median,
    /// Mean with bounds from Student's t.
    Mean,
}

/// An estimate with a one-sided bound on either side: "at least `lower`" is true with `confidence`, and so is "at most
/// `upper`"; both together with `2 * confidence - 1`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Median or mean of the sample.
    pub estimate: f64,
    /// Lower one-sided bound.
    pub lower: f64,
    /// Upper one-sided bound.
    pub upper: f64,
    /// Confidence of each bound alone, for example 0.95.
    pub confidence: f64,
    /// Number of values.
    pub n: usize,
}

/// Arithmetic mean; `None` of an empty slice.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() {
        None
    } else {
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }
}

/// Sample standard deviation (divisor n - 1); 0 of a single value, `None` of an empty slice.
pub fn stdev(values: &[f64]) -> Option<f64> {
    let m = mean(values)?;
    if values.len() == 1 {
        return Some(0.0);
    }
    let squares: f64 = values.iter().map(|v| (v - m) * (v - m)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The q-quantile, 0 <= q <= 1, linear between the neighbouring values (Hyndman and Fan's definition 7, the default of R
/// and NumPy). `None` of an empty slice or a `q` outside the range. Sorts a copy: O(n log n).
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if values.is_empty() || !(0.0..=1.0).contains(&q) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = q * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    if below == above || sorted[below] == sorted[above] {
        return Some(sorted[below]); // also keeps infinite neighbours from making a NaN
    }
    let part = position - below as f64;
    Some(sorted[below] * (1.0 - part) + sorted[above] * part)
}

/// Median; `None` of an empty slice.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Half the interquartile range relative to the median: the spread that a "no worse within its spread" bar allows. `None`
/// without values or with a median of 0.
pub fn relative_spread(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let range = quantile(values, 0.75)? - quantile(values, 0.25)?;
    let relative = range / 2.0 / middle.abs();
    relative.is_finite().then_some(relative)
}

/// One-sided bounds on the centre of `values` with the given confidence (between 0.5 and 1, both excluded).
///
/// `None` when the values are too few for that confidence, see [`values_needed`], or the confidence is out of range.
pub fn bounds(values: &[f64], method: Method, confidence: f64) -> Option<Bounds> {
    if !(confidence > 0.5 && confidence < 1.0) {
        return None;
    }
    let n = values.len();
    match method {
        Method::Median => {
            let k = sign_rank(n, 1.0 - confidence)?;
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            let estimate = median(&sorted)?;
            Some(Bounds {
                estimate,
                lower: sorted[k - 1],
                upper: sorted[n - k],
                confidence,
                n,
            })
        }
        Method::Mean => {
            if n < 2 {
                return None;
            }
            let estimate = mean(values)?;
            let half = student_t_quantile(confidence, (n - 1) as f64)? * stdev(values)?
                / (n as f64).sqrt();
            Some(Bounds {
                estimate,
                lower: estimate - half,
                upper: estimate + half,
                confidence,
                n,
            })
        }
    }
}

/// The fewest values from which [`bounds`] gives an answer at this confidence.
pub fn values_needed(method: Method, confidence: f64) -> usize {
    match method {
        // 2^-n <= 1 - confidence
        Method::Median => (-(1.0 - confidence).log2() - 1e-9).ceil().max(1.0) as usize,
        Method::Mean => 2,
    }
}

/// The largest k >= 1 such that fewer than k of n fair coins fall heads with probability at most `alpha`; `None` when
/// even k = 1 does not fit.
fn sign_rank(n: usize, alpha: f64) -> Option<usize> {
    if n == 0 {
        return None;
    }
    // Binomial(n, 1/2) terms in logarithms: 2^-n underflows above about 1,000 values.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut cumulative = 0.0;
    let mut k = 0;
    while k < n.div_ceil(2) {
        cumulative += log_term.exp();
        if cumulative > alpha * (1.0 + 1e-12) {
            break;
        }
        k += 1;
        log_term += ((n - k + 1) as f64 / k as f64).ln();
    }
    (k >= 1).then_some(k)
}

/// The `p`-quantile of Student's t with `df` degrees of freedom (not necessarily whole): by bisection of the distribution
/// function, to about 1e-12. `None` unless 0 < p < 1 and df > 0.
pub fn student_t_quantile(p: f64, df: f64) -> Option<f64> {
    if !(p > 0.0 && p < 1.0 && df > 0.0) {
        return None;
    }
    if p < 0.5 {
        return student_t_quantile(1.0 - p, df).map(|t| -t);
    }
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    while student_t_cdf(high, df) < p {
        high *= 2.0;
        if !high.is_finite() {
            return None;
        }
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if student_t_cdf(middle, df) < p {
            low = middle
        } else {
            high = middle
        }
    }
    Some(0.5 * (low + high))
}

/// Distribution function of Student's t for t >= 0, through the incomplete beta function (Abramowitz and Stegun, 26.7.1).
fn student_t_cdf(t: f64, df: f64) -> f64 {
    1.0 - 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + t * t))
}

/// Regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// The continued fraction itself, evaluated from the front with the modified Lentz method.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let keep = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / keep(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for step in 1..=500 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / keep(1.0 + even * d);
        c = keep(1.0 + even / c);
        value *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / keep(1.0 + odd * d);
        c = keep(1.0 + odd / c);
        value *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// Logarithm of the gamma function for x > 0: shifted up to where Stirling's series (Abramowitz and Stegun, 6.1.41) is
/// exact to double precision.
fn ln_gamma(x: f64) -> f64 {
    let mut shift = 0.0;
    let mut z = x;
    while z < 12.0 {
        shift += z.ln();
        z += 1.0;
    }
    let inv = 1.0 / z;
    let inv2 = inv * inv;
    let series = inv
        * (1.0 / 12.0
            - inv2
                * (1.0 / 360.0
                    - inv2 * (1.0 / 1260.0 - inv2 * (1.0 / 1680.0 - inv2 * (1.0 / 1188.0)))));
    (z - 0.5) * z.ln() - z + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[cfg(test)]
mod tests;
