//! Metric math: the expressions of GetMetricData. Pure.
//!
//! An expression is parsed, then its shape is checked, then it is evaluated. After the check, only
//! too many data points can fail.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of data points that the expressions of one request read and compute.
pub const POINTS_MAX: usize = 1_000_000;
/// Maximum number of Ids in all expressions of a request; METRICS() counts as the Ids that it
/// stands for.
pub const OPERANDS_MAX: usize = 10_000;
/// Maximum number of time series in an array.
const SERIES_MAX: usize = 500;
/// Maximum depth of nested parentheses, functions and signs.
const DEPTH_MAX: usize = 32;
/// The supported functions.
const FUNCTIONS: &str = "SUM, AVG, MIN, MAX, METRICS, FILL, PERIOD and RATE";

/// A query, as expressions refer to it.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Its Id.
    pub id: &'a str,
    /// Whether it is a metric, and not an expression.
    pub is_metric: bool,
}

/// Type of a part of an expression, with the period of each series in seconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A number.
    Scalar,
    /// A time series.
    Series(u64),
    /// Time series, in order.
    Array(Vec<u64>),
}

/// A time series.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The label of the metric from which it comes; empty if it comes from several.
    pub label: String,
    /// The period in seconds.
    pub period: u64,
    /// The beginnings of periods in seconds of Unix time, in order, with values.
    pub points: Vec<(u64, f64)>,
}

/// The value of a part of an expression; `Scalar(None)` is a number that does not exist, such as
/// the mean of no data points.
#[derive(Clone, PartialEq, Debug)]
pub enum Operand {
    /// A number.
    Scalar(Option<f64>),
    /// A time series.
    Series(Series),
    /// Time series, in order.
    Array(Vec<Series>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Aggregate {
    Sum,
    Average,
    Minimum,
    Maximum,
}

#[derive(Debug)]
enum Filling {
    Repeat,
    Linear,
    With(Node),
}

#[derive(Debug)]
enum Node {
    Number(f64),
    /// The query at this place of the request.
    Query(usize),
    /// Parts that make an array together: METRICS(), `[m1, m2]`.
    List(Vec<Node>),
    Negative(Box<Node>),
    /// Operators of one precedence, from left to right. They are a list and not a tree, so that
    /// a long sum is not deep.
    Chain(Box<Node>, Vec<(Operator, Node)>),
    Aggregate(Aggregate, Box<Node>),
    Fill(Box<Node>, Box<Filling>),
    Period(Box<Node>),
    Rate(Box<Node>),
}

/// A parsed expression.
#[derive(Debug)]
pub struct Expression {
    root: Node,
    /// The places of the queries to which it refers.
    pub references: BTreeSet<usize>,
}

impl Expression {
    /// Parses an expression over the queries of its request. `operands_left` is the rest of
    /// [`OPERANDS_MAX`].
    ///
    /// # Errors
    /// The text of an error that names the part that is not supported.
    pub fn parse(
        text: &str,
        queries: &[Named<'_>],
        operands_left: &mut usize,
    ) -> Result<Self, String> {
        let references = BTreeSet::new();
        let mut parser = Parser { text, at: 0, depth: 0, queries, references, operands_left };
        let root = parser.sum()?;
        match parser.peek() {
            None => Ok(Self { root, references: parser.references }),
            Some(_) => Err(parser.unexpected()),
        }
    }

    /// Returns the shape of its result, from those of the queries to which it refers.
    ///
    /// # Errors
    /// The text of an error if an operand has a wrong shape or period.
    pub fn shape(&self, of: &dyn Fn(usize) -> Shape) -> Result<Shape, String> {
        match shape(&self.root, of)? {
            Shape::Scalar => Err("the result is a number, and must be a time series".into()),
            shape => Ok(shape),
        }
    }

    /// Returns its value, from those of the queries to which it refers.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn evaluate(&self, evaluation: &mut Evaluation<'_>) -> Result<Operand, TooMany> {
        evaluation.node(&self.root)
    }
}

/// The expressions of a request use more than [`POINTS_MAX`] data points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMany;

/// Returns an order in which queries can be evaluated, from the references of each.
///
/// # Errors
/// The place of a query that refers to itself, directly or through others.
pub fn order(references: &[BTreeSet<usize>]) -> Result<Vec<usize>, usize> {
    let mut missing: Vec<usize> = references.iter().map(BTreeSet::len).collect();
    let mut users = vec![Vec::new(); references.len()];
    for (user, used) in references.iter().enumerate() {
        for query in used {
            users[*query].push(user);
        }
    }
    let mut order: Vec<usize> = (0..missing.len()).filter(|query| missing[*query] == 0).collect();
    let mut next = 0;
    while let Some(query) = order.get(next) {
        for user in &users[*query] {
            missing[*user] -= 1;
            if missing[*user] == 0 {
                order.push(*user);
            }
        }
        next += 1;
    }
    missing.iter().position(|left| *left > 0).map_or(Ok(order), Err)
}

struct Parser<'a> {
    text: &'a str,
    /// The byte at which the unread part begins.
    at: usize,
    depth: usize,
    queries: &'a [Named<'a>],
    references: BTreeSet<usize>,
    operands_left: &'a mut usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Returns the next character that is not a space.
    fn peek(&mut self) -> Option<char> {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest().chars().next()
    }

    fn takes(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.at += wanted.len_utf8();
        }
        is_next
    }

    fn needs(&mut self, wanted: char) -> Result<(), String> {
        if self.takes(wanted) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&mut self) -> String {
        match self.peek() {
            None => "it ends too early".into(),
            Some(found) => {
                let place = self.at + 1;
                format!(
                    "'{found}' at byte {place} is not supported there; expressions have + - * /, \
                     parentheses, numbers, Ids, arrays in [ ] and the functions {FUNCTIONS}"
                )
            }
        }
    }

    /// Takes text while its characters fit.
    fn run(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn sum(&mut self) -> Result<Node, String> {
        let first = self.product()?;
        let mut others = Vec::new();
        loop {
            let operator = match self.peek() {
                Some('+') => Operator::Add,
                Some('-') => Operator::Subtract,
                _ => return Ok(chain(first, others)),
            };
            self.at += 1;
            others.push((operator, self.product()?));
        }
    }

    fn product(&mut self) -> Result<Node, String> {
        let first = self.factor()?;
        let mut others = Vec::new();
        loop {
            let operator = match self.peek() {
                Some('*') => Operator::Multiply,
                Some('/') => Operator::Divide,
                _ => return Ok(chain(first, others)),
            };
            self.at += 1;
            others.push((operator, self.factor()?));
        }
    }

    fn factor(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("it is nested more than {DEPTH_MAX} levels deep"));
        }
        let node = match self.peek() {
            Some('-') => {
                self.at += 1;
                Node::Negative(Box::new(self.factor()?))
            }
            Some('(') => {
                self.at += 1;
                let inner = self.sum()?;
                self.needs(')')?;
                inner
            }
            Some('[') => {
                self.at += 1;
                let mut members = vec![self.sum()?];
                while self.takes(',') {
                    members.push(self.sum()?);
                }
                self.needs(']')?;
                Node::List(members)
            }
            Some('0'..='9' | '.') => self.number()?,
            Some('a'..='z' | 'A'..='Z') => self.word()?,
            _ => return Err(self.unexpected()),
        };
        self.depth -= 1;
        Ok(node)
    }

    fn number(&mut self) -> Result<Node, String> {
        let text = self.run(|c| c.is_ascii_digit() || c == '.');
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map(Node::Number).ok_or_else(|| format!("'{text:.64}' is not a number"))
    }

    /// Parses an Id, or a function with its arguments.
    fn word(&mut self) -> Result<Node, String> {
        let word = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        if self.peek() != Some('(') {
            return self.query(word);
        }
        self.at += 1;
        let node = match word {
            "METRICS" => self.metrics()?,
            "SUM" => Node::Aggregate(Aggregate::Sum, Box::new(self.sum()?)),
            "AVG" => Node::Aggregate(Aggregate::Average, Box::new(self.sum()?)),
            "MIN" => Node::Aggregate(Aggregate::Minimum, Box::new(self.sum()?)),
            "MAX" => Node::Aggregate(Aggregate::Maximum, Box::new(self.sum()?)),
            "PERIOD" => Node::Period(Box::new(self.sum()?)),
            "RATE" => Node::Rate(Box::new(self.sum()?)),
            "FILL" => self.fill()?,
            _ => {
                let known = format!("the functions are {FUNCTIONS}");
                return Err(format!("the function {word:.64} is not supported; {known}"));
            }
        };
        self.needs(')')?;
        Ok(node)
    }

    fn query(&mut self, word: &str) -> Result<Node, String> {
        let place = self.queries.iter().position(|query| query.id == word);
        let place = place.ok_or_else(|| {
            format!("'{word:.64}' is not the Id of a query of this request, nor a function")
        })?;
        self.operands(&[place])?;
        Ok(Node::Query(place))
    }

    fn operands(&mut self, places: &[usize]) -> Result<(), String> {
        let left = self.operands_left.checked_sub(places.len()).ok_or_else(|| {
            format!(
                "the expressions of the request have more than {OPERANDS_MAX} Ids; send fewer in \
                 one request"
            )
        })?;
        *self.operands_left = left;
        self.references.extend(places);
        Ok(())
    }

    fn metrics(&mut self) -> Result<Node, String> {
        let mut part = "";
        if let Some(quote @ ('"' | '\'')) = self.peek() {
            self.at += 1;
            part = self.run(|c| c != quote);
            self.needs(quote)?;
        }
        let fits = |query: &Named<'_>| query.is_metric && query.id.contains(part);
        let places = (0..self.queries.len()).filter(|place| fits(&self.queries[*place]));
        let places: Vec<usize> = places.collect();
        if places.is_empty() {
            return Err(format!("METRICS(\"{part:.64}\") finds no metric in this request"));
        }
        self.operands(&places)?;
        Ok(Node::List(places.into_iter().map(Node::Query).collect()))
    }

    fn fill(&mut self) -> Result<Node, String> {
        let filled = self.sum()?;
        self.needs(',')?;
        self.peek();
        let before = self.at;
        let filling = match self.run(|c| c.is_ascii_alphanumeric() || c == '_') {
            "REPEAT" => Filling::Repeat,
            "LINEAR" => Filling::Linear,
            _ => {
                self.at = before;
                Filling::With(self.sum()?)
            }
        };
        Ok(Node::Fill(Box::new(filled), Box::new(filling)))
    }
}

fn chain(first: Node, others: Vec<(Operator, Node)>) -> Node {
    if others.is_empty() { first } else { Node::Chain(Box::new(first), others) }
}

fn shape(node: &Node, of: &dyn Fn(usize) -> Shape) -> Result<Shape, String> {
    match node {
        Node::Number(_) => Ok(Shape::Scalar),
        Node::Query(place) => Ok(of(*place)),
        Node::Negative(inner) => shape(inner, of),
        Node::List(members) => list_shape(members, of),
        Node::Chain(first, others) => {
            let mut left = shape(first, of)?;
            for (_, right) in others {
                left = combined(left, shape(right, of)?)?;
            }
            Ok(left)
        }
        Node::Aggregate(_, inner) => match shape(inner, of)? {
            Shape::Scalar => Err("SUM, AVG, MIN and MAX need time series, not a number".into()),
            Shape::Series(_) => Ok(Shape::Scalar),
            Shape::Array(periods) => {
                let first = periods.first().copied().unwrap_or_default();
                periods.into_iter().try_for_each(|period| same_period(first, period))?;
                Ok(Shape::Series(first))
            }
        },
        Node::Fill(inner, filling) => {
            let inner = shape(inner, of)?;
            let with = match &**filling {
                Filling::With(node) => shape(node, of)?,
                Filling::Repeat | Filling::Linear => Shape::Scalar,
            };
            match (&inner, &with) {
                (Shape::Scalar, _) => Err("FILL needs time series, not a number".into()),
                (_, Shape::Array(_)) => {
                    Err("FILL needs a number, one time series, REPEAT or LINEAR".into())
                }
                _ => combined(inner, with),
            }
        }
        Node::Period(inner) => match shape(inner, of)? {
            Shape::Series(_) => Ok(Shape::Scalar),
            _ => Err("PERIOD needs one time series".into()),
        },
        Node::Rate(inner) => match shape(inner, of)? {
            Shape::Scalar => Err("RATE needs time series, not a number".into()),
            shape => Ok(shape),
        },
    }
}

fn list_shape(members: &[Node], of: &dyn Fn(usize) -> Shape) -> Result<Shape, String> {
    let mut periods = Vec::new();
    for member in members {
        match shape(member, of)? {
            Shape::Scalar => return Err("an array has time series, not numbers".into()),
            Shape::Series(period) => periods.push(period),
            Shape::Array(more) => periods.extend(more),
        }
        if periods.len() > SERIES_MAX {
            return Err(format!("an array has more than {SERIES_MAX} time series"));
        }
    }
    Ok(Shape::Array(periods))
}

fn combined(left: Shape, right: Shape) -> Result<Shape, String> {
    match (left, right) {
        (shape, Shape::Scalar) | (Shape::Scalar, shape) => Ok(shape),
        (Shape::Series(one), Shape::Series(other)) => {
            same_period(one, other)?;
            Ok(Shape::Series(one))
        }
        (Shape::Array(periods), Shape::Series(one))
        | (Shape::Series(one), Shape::Array(periods)) => {
            periods.iter().try_for_each(|period| same_period(one, *period))?;
            Ok(Shape::Array(periods))
        }
        (Shape::Array(_), Shape::Array(_)) => {
            Err("an operator between two arrays is not supported; use an Id of one metric".into())
        }
    }
}

fn same_period(one: u64, other: u64) -> Result<(), String> {
    if one == other {
        return Ok(());
    }
    Err(format!(
        "it combines periods of {one} s and {other} s, which is not supported; give the metrics \
         the same Period"
    ))
}

/// The input of an evaluation.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The known values of queries, by place.
    pub known: BTreeMap<usize, Operand>,
    /// The first requested second, and the first one after the request.
    pub span: (u64, u64),
    /// The rest of [`POINTS_MAX`].
    pub left: &'a mut usize,
}

impl Evaluation<'_> {
    /// Counts data points.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn count(&mut self, points: usize) -> Result<(), TooMany> {
        *self.left = self.left.checked_sub(points).ok_or(TooMany)?;
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<Operand, TooMany> {
        match node {
            Node::Number(number) => Ok(Operand::Scalar(Some(*number))),
            Node::Query(place) => {
                let points = self.known.get(place).map_or(0, Operand::len);
                self.count(points)?;
                Ok(self.known.get(place).cloned().unwrap_or(Operand::Scalar(None)))
            }
            Node::Negative(inner) => {
                let zero = Operand::Scalar(Some(0.0));
                let inner = self.node(inner)?;
                self.apply(Operator::Subtract, zero, inner)
            }
            Node::List(members) => {
                let mut all = Vec::new();
                for member in members {
                    all.extend(self.node(member)?.into_series());
                }
                Ok(Operand::Array(all))
            }
            Node::Chain(first, others) => {
                let mut left = self.node(first)?;
                for (operator, right) in others {
                    let right = self.node(right)?;
                    left = self.apply(*operator, left, right)?;
                }
                Ok(left)
            }
            Node::Aggregate(aggregate, inner) => {
                let inner = self.node(inner)?;
                self.count(inner.len())?;
                Ok(aggregate.of(inner))
            }
            Node::Fill(inner, filling) => {
                let inner = self.node(inner)?;
                self.fill(inner, filling)
            }
            Node::Period(inner) => {
                let series = self.node(inner)?.into_series();
                #[allow(clippy::cast_precision_loss)] // seconds of a period, far below 2^53
                let period = series.first().map(|series| series.period as f64);
                Ok(Operand::Scalar(period))
            }
            Node::Rate(inner) => {
                let inner = self.node(inner)?;
                self.count(inner.len())?;
                Ok(inner.map(rate))
            }
        }
    }

    fn apply(
        &mut self,
        operator: Operator,
        left: Operand,
        right: Operand,
    ) -> Result<Operand, TooMany> {
        match (left, right) {
            (Operand::Scalar(left), Operand::Scalar(right)) => {
                let value = left.zip(right).and_then(|(left, right)| operator.of(left, right));
                Ok(Operand::Scalar(value))
            }
            (left, Operand::Scalar(right)) => {
                self.count(left.len())?;
                Ok(left.map(|series| with_each(series, |at| operator.of(at, right?))))
            }
            (Operand::Scalar(left), right) => {
                self.count(right.len())?;
                Ok(right.map(|series| with_each(series, |at| operator.of(left?, at))))
            }
            (left, Operand::Series(right)) => {
                let members = left.count_of_series();
                self.count(left.len() + members * right.points.len())?;
                Ok(left.map(|left| matched(&left, &right, operator, &left.label)))
            }
            (Operand::Series(left), right) => {
                self.count(right.len() + right.count_of_series() * left.points.len())?;
                Ok(right.map(|right| matched(&left, &right, operator, &right.label)))
            }
            // The check of shapes returns an error for it.
            (Operand::Array(_), Operand::Array(_)) => Ok(Operand::Array(Vec::new())),
        }
    }

    fn fill(&mut self, operand: Operand, filling: &Filling) -> Result<Operand, TooMany> {
        let with = match filling {
            Filling::With(node) => Some(self.node(node)?),
            Filling::Repeat | Filling::Linear => None,
        };
        let (start, end) = self.span;
        let mut filled = Vec::new();
        let is_array = matches!(operand, Operand::Array(_));
        for series in operand.into_series() {
            let period = series.period;
            let start = start - start % period;
            let count = end.saturating_sub(start).div_ceil(period);
            self.count(usize::try_from(count).map_err(|_| TooMany)?)?;
            let times = (0..count).map(|number| start + number * period);
            let points = match (&with, filling) {
                (Some(with), _) => filled_with(&series, times, with),
                (None, Filling::Repeat) => repeated(&series, times),
                (None, _) => interpolated(&series, times),
            };
            filled.push(Series { points, ..series });
        }
        match filled.pop() {
            Some(series) if !is_array => Ok(Operand::Series(series)),
            last => {
                filled.extend(last);
                Ok(Operand::Array(filled))
            }
        }
    }
}

impl Operand {
    /// Returns the number of its data points.
    fn len(&self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            Self::Series(series) => series.points.len(),
            Self::Array(all) => all.iter().map(|series| series.points.len()).sum(),
        }
    }

    const fn count_of_series(&self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            Self::Series(_) => 1,
            Self::Array(all) => all.len(),
        }
    }

    /// Returns its time series, in order.
    pub fn into_series(self) -> Vec<Series> {
        match self {
            Self::Scalar(_) => Vec::new(),
            Self::Series(series) => vec![series],
            Self::Array(all) => all,
        }
    }

    fn map(self, change: impl Fn(Series) -> Series) -> Self {
        match self {
            Self::Scalar(value) => Self::Scalar(value),
            Self::Series(series) => Self::Series(change(series)),
            Self::Array(all) => Self::Array(all.into_iter().map(change).collect()),
        }
    }
}

impl Operator {
    /// Returns the result; `None` if it is not a number that a reply can have, such as that of `1 /
    /// 0`.
    fn of(self, left: f64, right: f64) -> Option<f64> {
        let value = match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
        };
        value.is_finite().then_some(value)
    }
}

impl Aggregate {
    fn of(self, operand: Operand) -> Operand {
        match operand {
            Operand::Scalar(value) => Operand::Scalar(value),
            Operand::Series(series) => {
                let values: Vec<f64> = series.points.iter().map(|(_, value)| *value).collect();
                Operand::Scalar(self.of_values(&values))
            }
            Operand::Array(all) => {
                let period = all.first().map_or(0, |series| series.period);
                let mut by_time = BTreeMap::<u64, Vec<f64>>::new();
                for (time, value) in all.iter().flat_map(|series| &series.points) {
                    by_time.entry(*time).or_default().push(*value);
                }
                let point = |(time, values): (&u64, &Vec<f64>)| {
                    self.of_values(values).map(|value| (*time, value))
                };
                let points = by_time.iter().filter_map(point).collect();
                Operand::Series(Series { label: String::new(), period, points })
            }
        }
    }

    fn of_values(self, values: &[f64]) -> Option<f64> {
        let sum: f64 = values.iter().sum();
        #[allow(clippy::cast_precision_loss)] // two million at most
        let count = values.len() as f64;
        let value = match self {
            Self::Sum => (!values.is_empty()).then_some(sum),
            Self::Average => (!values.is_empty()).then(|| sum / count),
            Self::Minimum => values.iter().copied().reduce(f64::min),
            Self::Maximum => values.iter().copied().reduce(f64::max),
        };
        value.filter(|value| value.is_finite())
    }
}

fn with_each(series: Series, change: impl Fn(f64) -> Option<f64>) -> Series {
    let points = series.points.iter().filter_map(|(time, at)| Some((*time, change(*at)?)));
    Series { points: points.collect(), ..series }
}

/// Applies the operator to the values at the times that both series have.
fn matched(left: &Series, right: &Series, operator: Operator, label: &str) -> Series {
    let mut others = right.points.iter().peekable();
    let mut points = Vec::new();
    for (time, value) in &left.points {
        while others.next_if(|(other, _)| other < time).is_some() {}
        let other = others.peek().filter(|(other, _)| other == time);
        if let Some(value) = other.and_then(|(_, other)| operator.of(*value, *other)) {
            points.push((*time, value));
        }
    }
    Series { label: label.to_owned(), period: left.period, points }
}

/// Returns the change since the previous data point, per second between them.
fn rate(series: Series) -> Series {
    #[allow(clippy::cast_precision_loss)] // seconds of a span, far below 2^53
    let between = |two: &[(u64, f64)]| {
        let [(before, low), (time, high)] = two else { return None };
        let value = (high - low) / (time - before) as f64;
        value.is_finite().then_some((*time, value))
    };
    let points = series.points.windows(2).filter_map(between).collect();
    Series { points, ..series }
}

fn filled_with(
    series: &Series,
    times: impl Iterator<Item = u64>,
    with: &Operand,
) -> Vec<(u64, f64)> {
    let known: BTreeMap<u64, f64> = series.points.iter().copied().collect();
    let others: BTreeMap<u64, f64> = match with {
        Operand::Series(other) => other.points.iter().copied().collect(),
        _ => BTreeMap::new(),
    };
    let other = |time: u64| match with {
        Operand::Scalar(value) => *value,
        _ => others.get(&time).copied(),
    };
    times
        .filter_map(|time| Some((time, known.get(&time).copied().or_else(|| other(time))?)))
        .collect()
}

/// Fills a missing value with the previous one; values before the first one stay missing.
fn repeated(series: &Series, times: impl Iterator<Item = u64>) -> Vec<(u64, f64)> {
    let mut known = series.points.iter().peekable();
    let mut last = None;
    let mut points = Vec::new();
    for time in times {
        while let Some((_, value)) = known.next_if(|(at, _)| *at <= time) {
            last = Some(*value);
        }
        points.extend(last.map(|value| (time, value)));
    }
    points
}

/// Fills a missing value on the line between its neighbours, where both exist.
fn interpolated(series: &Series, times: impl Iterator<Item = u64>) -> Vec<(u64, f64)> {
    let mut known = series.points.iter().peekable();
    let mut last: Option<(u64, f64)> = None;
    let mut points = Vec::new();
    for time in times {
        while let Some(point) = known.next_if(|(at, _)| *at <= time) {
            last = Some(*point);
        }
        let Some((before, low)) = last else { continue };
        if before == time {
            points.push((time, low));
        } else if let Some((after, high)) = known.peek() {
            #[allow(clippy::cast_precision_loss)] // seconds of a span, far below 2^53
            let part = (time - before) as f64 / (after - before) as f64;
            points.push((time, (high - low).mul_add(part, low)));
        }
    }
    points
}

#[cfg(test)]
mod tests;
