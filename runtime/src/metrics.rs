//! Figures of merit for binary predictions, on the host, in f64.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

/// Area under the receiver operating characteristic: the chance that a random positive scores above a random negative,
/// ties counting half. By mid-ranks (Mann and Whitney 1947), `O(n log n)`.
///
/// `scores` and `labels` are `[n]`; a label is 1 or 0; any finite or infinite score will do, only order counts. `None`
/// where there is no such number: one class is absent, lengths differ, a score is NaN, a label is neither 0 nor 1.
pub fn auc<S, L>(scores: &[S], labels: &[L]) -> Option<f64>
where
    S: Copy + Into<f64>,
    L: Copy + Into<f64>,
{
    let mut pairs = pairs(scores, labels)?;
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let positives = pairs.iter().filter(|pair| pair.1).count() as f64;
    let negatives = pairs.len() as f64 - positives;
    if positives == 0.0 || negatives == 0.0 {
        return None;
    }
    let below = positives * (positives + 1.0) / 2.0;
    Some((positive_ranks(&pairs) - below) / (positives * negatives))
}

/// Mean logistic loss in nats: `ln(1 + exp(z)) - y z`, from logits `z` so that no probability rounds to 0 or 1.
///
/// `logits` and `labels` are `[n]`. `None` where there is no such number: nothing given, lengths differ, a logit is
/// NaN, a label is neither 0 nor 1. An infinite logit on the wrong side gives infinity.
pub fn log_loss<S, L>(logits: &[S], labels: &[L]) -> Option<f64>
where
    S: Copy + Into<f64>,
    L: Copy + Into<f64>,
{
    let pairs = pairs(logits, labels)?;
    // ln(1 + exp(z)) - y z is ln(1 + exp(-margin)); the larger term is taken out so that exp cannot overflow.
    let loss = |(logit, label): &(f64, bool)| {
        let margin = if *label { *logit } else { -logit };
        (-margin).max(0.0) + (-margin.abs()).exp().ln_1p()
    };
    (!pairs.is_empty()).then(|| pairs.iter().map(loss).sum::<f64>() / pairs.len() as f64)
}

fn pairs<S, L>(scores: &[S], labels: &[L]) -> Option<Vec<(f64, bool)>>
where
    S: Copy + Into<f64>,
    L: Copy + Into<f64>,
{
    let pair = |(score, label): (&S, &L)| {
        let (score, label): (f64, f64) = ((*score).into(), (*label).into());
        // Adding zero makes -0 equal to 0 in the total order.
        (!score.is_nan() && (label == 0.0 || label == 1.0)).then_some((score + 0.0, label == 1.0))
    };
    (scores.len() == labels.len()).then(|| scores.iter().zip(labels).map(pair).collect())?
}

/// Sum of the positives' ranks, from 1; scores that tie share the mean of their ranks.
fn positive_ranks(sorted: &[(f64, bool)]) -> f64 {
    let mut before = 0;
    let tied = sorted.chunk_by(|a, b| a.0 == b.0).map(|group| {
        let rank = before as f64 + (group.len() + 1) as f64 / 2.0;
        before += group.len();
        rank * group.iter().filter(|pair| pair.1).count() as f64
    });
    tied.sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn auc_of_known_cases() {
        assert_eq!(auc(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0]), Some(0.75));
        assert_eq!(auc(&[1.0, 2.0, 3.0], &[0.0, 0.0, 1.0]), Some(1.0));
        assert_eq!(auc(&[3.0, 2.0, 1.0], &[0.0, 0.0, 1.0]), Some(0.0));
        assert_eq!(auc(&[5.0; 4], &[0.0, 1.0, 1.0, 1.0]), Some(0.5));
        assert_eq!(auc(&[0.0, -0.0], &[1.0, 0.0]), Some(0.5));
        assert_eq!(auc(&[f32::INFINITY, f32::NEG_INFINITY], &[1u8, 0]), Some(1.0));
    }

    #[test]
    fn auc_is_none_where_it_has_no_value() {
        assert_eq!(auc::<f64, f64>(&[], &[]), None);
        assert_eq!(auc(&[1.0, 2.0], &[1.0, 1.0]), None);
        assert_eq!(auc(&[1.0, 2.0], &[0.0, 0.0]), None);
        assert_eq!(auc(&[1.0, f64::NAN], &[0.0, 1.0]), None);
        assert_eq!(auc(&[1.0, 2.0], &[0.0, f64::NAN]), None);
        assert_eq!(auc(&[1.0, 2.0], &[0.0, 2.0]), None);
        assert_eq!(auc(&[1.0], &[0.0, 1.0]), None);
    }

    #[test]
    fn log_loss_of_known_cases() {
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-15, "{a:?} {b}");
        near(log_loss(&[0.0, 0.0], &[0.0, 1.0]), std::f64::consts::LN_2);
        near(log_loss(&[2.0], &[1.0]), (1.0 + (-2.0f64).exp()).ln());
        near(log_loss(&[1e4, -1e4], &[1.0, 0.0]), 0.0);
        assert_eq!(log_loss(&[1e4], &[0.0]), Some(1e4));
        assert_eq!(log_loss(&[f64::INFINITY, 0.0], &[0.0, 1.0]), Some(f64::INFINITY));
        assert_eq!(log_loss(&[f64::INFINITY], &[1.0]), Some(0.0));
    }

    #[test]
    fn log_loss_is_none_where_it_has_no_value() {
        assert_eq!(log_loss::<f32, f32>(&[], &[]), None);
        assert_eq!(log_loss(&[f32::NAN], &[1.0]), None);
        assert_eq!(log_loss(&[1.0], &[0.5]), None);
        assert_eq!(log_loss(&[1.0, 2.0], &[1.0]), None);
    }

    proptest! {
        #[test]
        fn auc_counts_pairs(pairs in prop::collection::vec((0i8..9, prop::bool::ANY), 0..60)) {
            let (scores, labels): (Vec<i8>, Vec<bool>) = pairs.iter().copied().unzip();
            let labels: Vec<u8> = labels.into_iter().map(u8::from).collect();
            let up = pairs.iter().filter(|p| p.1).flat_map(|p| pairs.iter().filter(|q| !q.1).map(move |q| (p.0, q.0)));
            let wins: f64 = up.clone().map(|(p, q)| f64::from(u8::from(p > q)) + 0.5 * f64::from(u8::from(p == q))).sum();
            let count = up.count() as f64;
            match auc(&scores, &labels) {
                Some(area) => prop_assert!((area - wins / count).abs() < 1e-12),
                None => prop_assert_eq!(count, 0.0),
            }
        }
    }
}
