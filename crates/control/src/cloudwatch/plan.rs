//! The queries of a GetMetricData, checked against each other. Pure.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_telemetry::cloudwatch::math::{
    self, Evaluation, Expression, Named, OPERANDS_MAX, Operand, POINTS_MAX, Series, Shape, TooMany,
};
use evenkeel_telemetry::cloudwatch::query::Statistic;

use crate::api::error::ApiError;

/// Maximum number of results of a request. An expression has several if its value is an array.
const RESULTS_MAX: usize = 1_000;

/// One query.
#[derive(Debug)]
pub struct Query<M> {
    /// Its Id.
    pub id: String,
    /// Its Label; its Id if it is an expression without a Label.
    pub label: String,
    /// The metric or the expression.
    pub source: Source<M>,
    /// Whether the reply has its values.
    pub is_returned: bool,
}

impl<M> Query<M> {
    /// Returns the query as expressions refer to it.
    const fn named(&self) -> Named<'_> {
        Named { id: self.id.as_str(), is_metric: matches!(self.source, Source::Metric(..)) }
    }
}

/// The source of a query's values.
#[derive(Debug)]
pub enum Source<M> {
    /// A statistic of a metric, for each period in seconds.
    Metric(M, Statistic, u64),
    /// An expression, and its Period if it has one.
    Expression(String, Option<u64>),
}

/// The queries of a request, checked.
#[derive(Debug)]
pub struct Plan<M> {
    /// The queries, in order.
    pub queries: Vec<Query<M>>,
    /// The results, in order: the place of the query, and the number of its time series.
    pub results: Vec<(usize, usize)>,
    /// The expressions by the places of their queries.
    expressions: BTreeMap<usize, Expression>,
    /// The places of the expressions and of the metrics that they use, in an order in which they
    /// can be evaluated.
    order: Vec<usize>,
}

impl<M> Plan<M> {
    /// Checks the expressions of queries.
    ///
    /// # Errors
    /// `ValidationError`, with the Id of the query.
    pub fn new(queries: Vec<Query<M>>) -> Result<Self, ApiError> {
        let named: Vec<Named<'_>> = queries.iter().map(Query::named).collect();
        let mut operands_left = OPERANDS_MAX;
        let mut expressions = BTreeMap::new();
        for (place, query) in queries.iter().enumerate() {
            let Source::Expression(text, _) = &query.source else { continue };
            let parsed = Expression::parse(text, &named, &mut operands_left);
            expressions.insert(place, parsed.map_err(|text| wrong(query, &text))?);
        }
        let none = BTreeSet::new();
        let used = |place| expressions.get(&place).map_or(&none, |it: &Expression| &it.references);
        let references: Vec<BTreeSet<usize>> =
            (0..queries.len()).map(|place| used(place).clone()).collect();
        let order = math::order(&references)
            .map_err(|place| wrong(&queries[place], "it refers to its own result"))?;
        let shapes = shapes(&queries, &expressions, &order)?;
        let returned = (0..queries.len()).filter(|place| queries[*place].is_returned);
        let results = returned.flat_map(|place| {
            let count = if let Shape::Array(all) = &shapes[place] { all.len() } else { 1 };
            (0..count).map(move |member| (place, member))
        });
        let results: Vec<(usize, usize)> = results.take(RESULTS_MAX + 1).collect();
        if results.len() > RESULTS_MAX {
            let text = format!(
                "The parameter MetricDataQueries has more than {RESULTS_MAX} results; send fewer \
                 queries with arrays of time series in one request."
            );
            return Err(ApiError::new("ValidationError", text));
        }
        let used: BTreeSet<usize> = references.into_iter().flatten().collect();
        let is_used = |place: &usize| expressions.contains_key(place) || used.contains(place);
        let order = order.into_iter().filter(is_used).collect();
        Ok(Self { results, expressions, order, queries })
    }

    /// Returns the time series of all expressions, by the places of their queries. `load` reads a
    /// metric; `span` is that of [`Evaluation`].
    ///
    /// # Errors
    /// `ValidationError` if the expressions use too many data points.
    pub fn evaluate(
        &self,
        span: (u64, u64),
        mut load: impl FnMut(&M, Statistic, u64) -> Vec<(u64, f64)>,
    ) -> Result<BTreeMap<usize, Vec<Series>>, ApiError> {
        let mut left = POINTS_MAX;
        let mut evaluation = Evaluation { known: BTreeMap::new(), span, left: &mut left };
        for place in &self.order {
            let query = &self.queries[*place];
            let value = match &query.source {
                Source::Metric(metric, statistic, period) => {
                    let points = load(metric, *statistic, *period);
                    let count = evaluation.count(points.len());
                    let label = query.label.clone();
                    count.map(|()| Operand::Series(Series { label, period: *period, points }))
                }
                Source::Expression(..) => match self.expressions.get(place) {
                    Some(expression) => expression.evaluate(&mut evaluation),
                    None => continue,
                },
            };
            let value = value.map_err(|TooMany| {
                let text = format!(
                    "the expressions of the request use more than {POINTS_MAX} data points; ask \
                     for less time, longer periods or fewer metrics"
                );
                wrong(query, &text)
            })?;
            evaluation.known.insert(*place, value);
        }
        let known = evaluation.known.into_iter();
        let known = known.filter(|(place, _)| self.expressions.contains_key(place));
        Ok(known.map(|(place, value)| (place, value.into_series())).collect())
    }
}

fn wrong<M>(query: &Query<M>, text: &str) -> ApiError {
    ApiError::new("ValidationError", format!("Error in expression '{}': {text}.", query.id))
}

/// Returns the shapes of all queries, in their order.
fn shapes<M>(
    queries: &[Query<M>],
    expressions: &BTreeMap<usize, Expression>,
    order: &[usize],
) -> Result<Vec<Shape>, ApiError> {
    let mut shapes = vec![Shape::Scalar; queries.len()];
    for place in order {
        let query = &queries[*place];
        shapes[*place] = match &query.source {
            Source::Metric(_, _, period) => Shape::Series(*period),
            Source::Expression(_, own) => {
                let Some(expression) = expressions.get(place) else { continue };
                let of = |other: usize| shapes[other].clone();
                let shape = expression.shape(&of).map_err(|text| wrong(query, &text))?;
                let periods = match &shape {
                    Shape::Scalar => &[][..],
                    Shape::Series(period) => std::slice::from_ref(period),
                    Shape::Array(periods) => periods,
                };
                let other = periods.iter().find(|period| own.is_some_and(|own| own != **period));
                if let Some(period) = other {
                    let text = format!(
                        "its metrics have a Period of {period} s; its own Period must equal that \
                         or be left out"
                    );
                    return Err(wrong(query, &text));
                }
                shape
            }
        };
    }
    Ok(shapes)
}
