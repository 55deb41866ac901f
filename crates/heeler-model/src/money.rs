//! Amounts of money as text: one rule for every output. Start at [`format_usd`].

/// Returns an amount in US dollars: `$0.00`, `$0.02`, `$0.0042`, `$12.35`. Below one dollar, fractions
/// of a cent are shown with four decimals. An amount that is too small for them is `<$0.0001`.
pub fn format_usd(usd: f64) -> String {
    // The sum of no floats is -0.
    let usd = usd + 0.0;
    let text = format!("${usd:.4}");
    match text.strip_suffix("00") {
        Some("$0.00") if usd > 0.0 => "<$0.0001".to_owned(),
        Some(cents) => cents.to_owned(),
        None if usd < 1.0 => text,
        None => format!("${usd:.2}"),
    }
}

/// Returns an amount of millionths of a US dollar as text.
pub fn format_micros(micros: impl Into<i128>) -> String {
    format_usd(micros.into() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_cents_and_small_ones_their_fractions() {
        let cases = [
            (0.0, "$0.00"),
            (-0.0, "$0.00"),
            (0.000_01, "<$0.0001"),
            (0.0042, "$0.0042"),
            (0.02, "$0.02"),
            (0.125, "$0.1250"),
            (0.5, "$0.50"),
            (0.999_99, "$1.00"),
            (1.2345, "$1.23"),
            (10.0, "$10.00"),
        ];
        for (usd, text) in cases {
            assert_eq!(format_usd(usd), text);
        }
        assert_eq!(format_micros(1_500_000_i64), "$1.50");
    }
}
