//! Scores, their softmax, and the best of them. Pure.

use std::cmp::Ordering;

/// Why scores cannot be ranked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum RankError {
    #[error("there are no scores")]
    Empty,
    #[error("score {index} is NaN")]
    NotANumber { index: usize },
    #[error("the scores have no softmax: the largest is {largest}")]
    NoSoftmax { largest: f64 },
}

/// The `top_k` best scores with their indices, the best first; of equals the lower index.
pub(super) fn rank(scores: &[f64], softmax: bool, top_k: usize) -> Result<Vec<(usize, f64)>, RankError> {
    let largest = largest(scores)?;
    let mut ranked: Vec<usize> = (0..scores.len()).collect();
    let order = |a: &usize, b: &usize| scores[*b].partial_cmp(&scores[*a]).unwrap_or(Ordering::Equal).then(a.cmp(b));
    if top_k < ranked.len() {
        ranked.select_nth_unstable_by(top_k, order);
        ranked.truncate(top_k);
    }
    ranked.sort_unstable_by(order);
    let told = if softmax {
        softmax_of(scores, largest, &ranked)?
    } else {
        ranked.iter().map(|index| scores[*index]).collect()
    };
    Ok(ranked.into_iter().zip(told).collect())
}

/// The probabilities of the chosen. The largest score is taken off first, so that no exponential overflows.
fn softmax_of(scores: &[f64], largest: f64, chosen: &[usize]) -> Result<Vec<f64>, RankError> {
    // A softmax of infinite scores is not defined.
    if !largest.is_finite() {
        return Err(RankError::NoSoftmax { largest });
    }
    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    Ok(chosen.iter().map(|index| (scores[*index] - largest).exp() / sum).collect())
}

fn largest(scores: &[f64]) -> Result<f64, RankError> {
    if let Some(index) = scores.iter().position(|score| score.is_nan()) {
        return Err(RankError::NotANumber { index });
    }
    scores.iter().copied().reduce(f64::max).ok_or(RankError::Empty)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_best_come_first_and_of_equals_the_lower_index() {
        assert_eq!(rank(&[0.1, 0.5, 0.5, 0.2], false, 3).unwrap(), [(1, 0.5), (2, 0.5), (3, 0.2)]);
        assert_eq!(rank(&[-1.0, -2.0], false, 5).unwrap(), [(0, -1.0), (1, -2.0)]);
    }

    #[test]
    fn softmax_does_not_overflow() {
        assert_eq!(rank(&[1000.0, 1000.0], true, 2).unwrap(), [(0, 0.5), (1, 0.5)]);
        assert_eq!(rank(&[0.0, f64::NEG_INFINITY], true, 2).unwrap(), [(0, 1.0), (1, 0.0)]);
    }

    #[test]
    fn what_cannot_be_ranked_is_named() {
        assert_eq!(rank(&[], false, 1), Err(RankError::Empty));
        assert_eq!(rank(&[0.0, f64::NAN], false, 1), Err(RankError::NotANumber { index: 1 }));
        assert_eq!(rank(&[0.0, f64::INFINITY], false, 1).unwrap(), [(1, f64::INFINITY)]);
        assert_eq!(rank(&[0.0, f64::INFINITY], true, 1), Err(RankError::NoSoftmax { largest: f64::INFINITY }));
        assert!(matches!(rank(&[f64::NEG_INFINITY], true, 1), Err(RankError::NoSoftmax { .. })));
    }

    proptest! {
        #[test]
        fn agrees_with_sorting_everything(scores in prop::collection::vec(-5i32..5, 1..50), top_k in 1usize..60) {
            let scores: Vec<f64> = scores.into_iter().map(f64::from).collect();
            let mut sorted: Vec<(usize, f64)> = scores.iter().copied().enumerate().collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable: of equals the lower index
            sorted.truncate(top_k);
            prop_assert_eq!(rank(&scores, false, top_k).unwrap(), sorted);
        }

        #[test]
        fn probabilities_sum_to_one(scores in prop::collection::vec(-1e3f64..1e3, 1..50)) {
            let sum: f64 = rank(&scores, true, scores.len()).unwrap().iter().map(|(_, score)| score).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9, "{}", sum);
        }
    }
}
