//! Tests of metric math.

use super::*;
use proptest::prelude::*;

/// A minute of 2023, in seconds.
const T0: u64 = 1_700_000_040;

fn series(label: &str, points: &[(u64, f64)]) -> Series {
    let points = points.iter().map(|(minute, value)| (T0 + minute * 60, *value)).collect();
    Series { label: label.into(), period: 60, points }
}

/// m1 and m2 have a gap each, n has values of 300 s, and e is the array of m1 and m2.
fn known() -> Vec<(&'static str, Operand)> {
    let m1 = series("one", &[(0, 10.0), (1, 20.0), (3, 40.0)]);
    let m2 = series("two", &[(0, 1.0), (1, 0.0), (2, 3.0)]);
    let n = Series { period: 300, ..series("n", &[(0, 1.0)]) };
    vec![
        ("m1", Operand::Series(m1.clone())),
        ("m2", Operand::Series(m2.clone())),
        ("n", Operand::Series(n)),
        ("e", Operand::Array(vec![m1, m2])),
    ]
}

fn parse(text: &str) -> Result<Expression, String> {
    let known = known();
    let named = |(id, _): &(&'static str, _)| Named { id, is_metric: *id != "e" };
    let named: Vec<Named<'static>> = known.iter().map(named).collect();
    Expression::parse(text, &named, &mut 100)
}

fn shape_of(value: &Operand) -> Shape {
    match value {
        Operand::Scalar(_) => Shape::Scalar,
        Operand::Series(series) => Shape::Series(series.period),
        Operand::Array(all) => Shape::Array(all.iter().map(|series| series.period).collect()),
    }
}

/// Evaluates an expression with at most `left` data points. Returns its value or the error.
fn evaluate_within(text: &str, mut left: usize) -> Result<Operand, String> {
    let expression = parse(text)?;
    let values = known();
    let shape = expression.shape(&|place| shape_of(&values[place].1))?;
    let known = values.into_iter().map(|(_, value)| value).enumerate().collect();
    let mut evaluation = Evaluation { known, span: (T0, T0 + 300), left: &mut left };
    let value = expression.evaluate(&mut evaluation).map_err(|TooMany| "too many".to_owned())?;
    assert_eq!(shape_of(&value), shape, "{text}");
    Ok(value)
}

fn evaluate(text: &str) -> Result<Operand, String> {
    evaluate_within(text, 1_000)
}

/// Returns minutes and values of a result that is one time series.
fn points(text: &str) -> Vec<(u64, f64)> {
    match evaluate(text) {
        Ok(Operand::Series(series)) => {
            series.points.iter().map(|(time, value)| ((time - T0) / 60, *value)).collect()
        }
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn operators_have_precedence_and_go_from_left_to_right() {
    for (text, expected) in [
        ("m1 + 2 * 3", [(0, 16.0), (1, 26.0), (3, 46.0)]),
        ("(m1 + 2) * 3", [(0, 36.0), (1, 66.0), (3, 126.0)]),
        ("m1 - 1 - 2", [(0, 7.0), (1, 17.0), (3, 37.0)]),
        ("100 / m1 / 2", [(0, 5.0), (1, 2.5), (3, 1.25)]),
        ("-m1*-1", [(0, 10.0), (1, 20.0), (3, 40.0)]),
        ("m1-.5", [(0, 9.5), (1, 19.5), (3, 39.5)]),
        ("m1", [(0, 10.0), (1, 20.0), (3, 40.0)]),
    ] {
        assert_eq!(points(text), expected, "{text}");
    }
}

#[test]
fn operators_use_the_times_that_both_series_have() {
    assert_eq!(points("m1 + m2"), [(0, 11.0), (1, 20.0)]);
    assert_eq!(points("m2 - m1"), [(0, -9.0), (1, -20.0)]);
    assert_eq!(points("m1 / m2"), [(0, 10.0)], "a division by 0 has no value");
    assert_eq!(points("m1 / 0"), []);
    assert_eq!(points("m1 * (1 / 0)"), []);
}

#[test]
fn aggregates_of_an_array_are_a_series_and_of_a_series_a_number() {
    let all = [(0, 11.0), (1, 20.0), (2, 3.0), (3, 40.0)];
    for text in ["SUM([m1, m2])", "SUM(e)", "SUM(METRICS('m'))", "SUM( METRICS( \"m\" ) )"] {
        assert_eq!(points(text), all, "{text}");
    }
    assert_eq!(points("AVG(e)"), [(0, 5.5), (1, 10.0), (2, 3.0), (3, 40.0)]);
    assert_eq!(points("MIN(e)"), [(0, 1.0), (1, 0.0), (2, 3.0), (3, 40.0)]);
    assert_eq!(points("MAX(e)"), [(0, 10.0), (1, 20.0), (2, 3.0), (3, 40.0)]);
    assert_eq!(points("m2 - m2 + SUM(m1)"), [(0, 70.0), (1, 70.0), (2, 70.0)]);
    assert_eq!(points("m1 - AVG(m2 * 3)"), [(0, 6.0), (1, 16.0), (3, 36.0)]);
    assert_eq!(points("m1 / PERIOD(m1) * 60"), [(0, 10.0), (1, 20.0), (3, 40.0)]);
    assert_eq!(points("m1 * AVG(m1 / 0)"), [], "there is no mean of nothing");
}

#[test]
fn fill_gives_values_to_the_periods_of_the_span() {
    let zero = [(0, 10.0), (1, 20.0), (2, 0.0), (3, 40.0), (4, 0.0)];
    assert_eq!(points("FILL(m1, 0)"), zero);
    assert_eq!(points("FILL(m1, MIN(m2))"), zero);
    let last = [(0, 10.0), (1, 20.0), (2, 20.0), (3, 40.0), (4, 40.0)];
    assert_eq!(points("FILL(m1, REPEAT)"), last);
    assert_eq!(points("FILL(m1,LINEAR)"), [(0, 10.0), (1, 20.0), (2, 30.0), (3, 40.0)]);
    assert_eq!(points("FILL(m1, m2)"), [(0, 10.0), (1, 20.0), (2, 3.0), (3, 40.0)]);
    let Ok(Operand::Array(all)) = evaluate("FILL(e, 7)") else { panic!() };
    assert_eq!(all.iter().map(|series| series.points.len()).collect::<Vec<_>>(), [5, 5]);
    assert_eq!((&*all[0].label, all[1].points[3].1), ("one", 7.0));
}

#[test]
fn rate_is_the_change_for_each_second() {
    assert_eq!(points("RATE(m1) * 60"), [(1, 10.0), (3, 10.0)]);
    let Ok(Operand::Array(all)) = evaluate("RATE(e)") else { panic!() };
    assert_eq!((all.len(), all[1].points.len()), (2, 2));
}

#[test]
fn an_array_has_a_result_for_each_series_with_its_label() {
    let Ok(Operand::Array(all)) = evaluate("2 * e + m2") else { panic!() };
    assert_eq!(
        all,
        [series("one", &[(0, 21.0), (1, 40.0)]), series("two", &[(0, 3.0), (1, 0.0), (2, 9.0)]),]
    );
    let Ok(Operand::Array(all)) = evaluate("m1 - e") else { panic!() };
    assert_eq!(all[1], series("two", &[(0, 9.0), (1, 20.0)]));
}

#[test]
fn expressions_that_are_not_evaluated_are_refused_by_name() {
    let nested = "(".repeat(33) + "m1" + &")".repeat(33);
    let signs = "-".repeat(2_000) + "m1";
    for (text, part) in [
        ("SEARCH('{AWS/EBS,VolumeId}', 'Sum')", "the function SEARCH is not supported"),
        ("IF(m1 > 1, m1, 0)", "the function IF is not supported"),
        ("SELECT AVG(m1)", "'SELECT' is not the Id"),
        ("m1 ^ 2", "'^' at byte 4 is not supported"),
        ("m1 > 2", "'>' at byte 4"),
        ("m9", "'m9' is not the Id"),
        ("SUM(METRICS('z'))", "METRICS(\"z\") finds no metric"),
        ("SUM(METRICS('m)", "it ends too early"),
        ("m1 +", "it ends too early"),
        ("", "it ends too early"),
        ("m1 m2", "'m' at byte 4"),
        ("m1 + ü", "'ü' at byte 6"),
        ("1.2.3 * m1", "'1.2.3' is not a number"),
        ("SUM()", "')' at byte 5"),
        ("SUM(m1, m2)", "',' at byte 7"),
        ("SUM(1)", "need time series"),
        ("SUM(m1)", "the result is a number"),
        ("1 + 1", "the result is a number"),
        ("m1 + n", "periods of 60 s and 300 s"),
        ("SUM([m1, n])", "periods of 60 s and 300 s"),
        ("FILL(m1, n)", "periods of 60 s and 300 s"),
        ("e + e", "an operator between two arrays is not supported"),
        ("[m1, 1]", "an array has time series"),
        ("FILL(1, 2)", "FILL needs time series"),
        ("FILL(m1, e)", "FILL needs a number"),
        ("m1 * PERIOD(e)", "PERIOD needs one time series"),
        ("RATE(1)", "RATE needs time series"),
        (&nested, "nested more than 32 levels deep"),
        (&signs, "nested more than 32 levels deep"),
    ] {
        let error = evaluate(text).expect_err(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn expressions_are_bounded_in_operands_and_data_points() {
    assert!(evaluate_within("m1 + m2", 12).is_ok());
    assert_eq!(evaluate_within("m1 + m2", 11), Err("too many".into()));
    assert_eq!(evaluate_within("FILL(m1, 0)", 7), Err("too many".into()));
    let long = format!("m1{}", "+m2".repeat(99));
    assert!(evaluate(&long).is_ok());
    let error = parse(&format!("{long}+m1")).unwrap_err();
    assert!(error.contains("more than 10000 Ids"), "{error}");
}

#[test]
fn an_expression_may_use_others_but_not_its_own_result() {
    let references = |lists: &[&[usize]]| -> Vec<BTreeSet<usize>> {
        lists.iter().map(|list| list.iter().copied().collect()).collect()
    };
    assert_eq!(order(&references(&[&[1, 2], &[2], &[]])), Ok(vec![2, 1, 0]));
    assert_eq!(order(&references(&[&[], &[2], &[1]])), Err(1));
    assert_eq!(order(&references(&[&[0]])), Err(0));
    // Each of the 500 expressions refers to the previous one. `order` does not recurse over them.
    let chain: Vec<BTreeSet<usize>> =
        (0..500_usize).map(|place| place.checked_sub(1).into_iter().collect()).collect();
    assert_eq!(order(&chain), Ok((0..500).collect()));
}

proptest! {
    /// Texts of the parts of expressions, of which many are legal and many are not.
    #[test]
    fn evaluating_never_panics_and_has_the_shape_that_was_checked(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "m1", "m2", "n", "e", "1", "0.5", "+", "-", "*", "/", "(", ")", "[", "]", ",", "SUM(",
            "AVG(", "FILL(", "REPEAT", "LINEAR", "RATE(", "PERIOD(", "METRICS()", "'", "ü", " ",
        ]), 0..12),
        left in 0..200_usize,
    ) {
        // `evaluate_within` compares the shapes.
        let _ = evaluate_within(&parts.concat(), left);
    }
}
