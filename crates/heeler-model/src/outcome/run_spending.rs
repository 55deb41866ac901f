//! Cost of a run, computed from figures that cover the whole session.
//!
//! A result reports totals of the session, across resumes and forks. The totals restart after a
//! process was killed. Newer agents also report the increase since the last result, which is
//! summed. For older agents, differences of the totals are summed. Start at [`RunSpending`].

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use crate::UsageTotals;
use crate::run::RunCost;

type ResultFields = Map<String, Json>;

/// Figures of a model that are limits, not counts.
const MODEL_LIMIT_KEYS: [&str; 2] = ["contextWindow", "maxOutputTokens"];

/// Most models with figures of their own. The cost of further models is only in the sum.
const MODELS_MAX: usize = 256;

/// Accumulated spending of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct RunSpending {
    usd: Option<f64>,
    /// An amount was reported that cannot be a cost, so the real one is unknown.
    is_cost_invalid: bool,
    turns: Option<i64>,
    api_ms: Option<i64>,
    per_model: IndexMap<String, Json>,
    /// Token counts of the results themselves, for agents that do not report usage by model.
    reported_tokens: Option<TokenCounts>,
    previous_totals: Option<SessionTotals>,
}

/// Totals of the whole session, from the last result.
#[derive(Debug, Clone, Default)]
struct SessionTotals {
    usd: f64,
    api_ms: i64,
    per_model: ResultFields,
}

#[derive(Debug, Clone, Copy, Default)]
struct TokenCounts {
    input: i64,
    cache_creation: i64,
    cache_read: i64,
    output: i64,
}

impl RunSpending {
    /// Starts from the totals of the session's last result.
    pub(super) fn after_result(last_result: &Json) -> RunSpending {
        // A row that cannot be read means that the earlier totals are unknown.
        let Json::Object(fields) = last_result else { return RunSpending::default() };
        RunSpending { previous_totals: Some(SessionTotals::read(fields)), ..RunSpending::default() }
    }

    /// Starts from the totals of this attempt's last result.
    pub(super) fn next_attempt(&self) -> RunSpending {
        RunSpending { previous_totals: self.previous_totals.clone(), ..RunSpending::default() }
    }

    pub(super) fn add_result(&mut self, fields: &ResultFields) {
        // Read before the old totals are replaced, as the differences need both.
        let totals = SessionTotals::read(fields);
        let is_first = self.previous_totals.is_none();
        let before = self.previous_totals.take().unwrap_or_default();
        let new = object(fields.get("model_usage_since_last_result"));
        // The session had costs before, and its earlier API time is unknown.
        let is_resumed = is_first && new.is_some_and(|new| *new != totals.per_model);
        self.is_cost_invalid |= has_invalid_cost(fields, new);
        let (usd, mut per_model) = match new {
            // Increases that the agent reports are exact, and survive a restart of its totals.
            Some(new) => (new.values().map(figures_cost).sum(), new.clone()),
            None => {
                (increase_since(totals.usd, before.usd), difference(&totals.per_model, &before))
            }
        };
        // A result without either field says nothing about money, which is not the same as zero.
        if fields.contains_key("total_cost_usd") || new.is_some() {
            // No agent can give money back.
            *self.usd.get_or_insert(0.0) += usd.max(0.0);
        }
        remove_negative_figures(&mut per_model);
        for (model, figures) in per_model {
            // The names come from the agent, so their number must be limited.
            if self.per_model.len() >= MODELS_MAX && !self.per_model.contains_key(&model) {
                continue;
            }
            add_figures(
                self.per_model.entry(model).or_insert_with(|| ResultFields::new().into()),
                &figures,
            );
        }
        if fields.contains_key("duration_api_ms") && !is_resumed {
            let api_ms = match totals.api_ms.saturating_sub(before.api_ms) {
                more @ 0.. => more,
                // The total fell: it restarted with a new process, and counts in full.
                _ => totals.api_ms,
            };
            add_saturating(self.api_ms.get_or_insert(0), api_ms);
        }
        if let Some(turns) = fields.get("num_turns").and_then(Json::as_i64) {
            add_saturating(self.turns.get_or_insert(0), turns.max(0));
        }
        if let Some(usage) = object(fields.get("usage")) {
            self.reported_tokens.get_or_insert_default().add_reported(usage);
        }
        self.previous_totals = Some(totals);
    }

    /// Returns the cost that was reported until now, for the run's limit.
    pub(super) fn usd(&self) -> Option<f64> {
        self.usd
    }

    /// Returns the cost and usage.
    pub(super) fn cost(&self) -> RunCost {
        let mut by_model = TokenCounts::default();
        for figures in self.per_model.values() {
            by_model.add_model(figures);
        }
        // Only the figures by model include sub-agents.
        let tokens = if self.per_model.is_empty() { self.reported_tokens } else { Some(by_model) };
        RunCost {
            usd: self.usd.filter(|_| !self.is_cost_invalid),
            usage: UsageTotals {
                num_turns: self.turns,
                api_duration_ms: self.api_ms,
                input_tokens: tokens.map(|tokens| tokens.input),
                cache_creation_input_tokens: tokens.map(|tokens| tokens.cache_creation),
                cache_read_input_tokens: tokens.map(|tokens| tokens.cache_read),
                output_tokens: tokens.map(|tokens| tokens.output),
                per_model: self.per_model.clone(),
            },
        }
    }
}

impl RunCost {
    /// Adds the cost of another attempt. The money is unknown if either amount is. Of the other
    /// figures, the known values are summed.
    #[must_use]
    pub fn plus(mut self, other: &RunCost) -> RunCost {
        // An unknown count is better than none at all if the other attempt reported one.
        let told = |a: Option<i64>, b: Option<i64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        let (sum, more) = (&mut self.usage, &other.usage);
        sum.num_turns = told(sum.num_turns, more.num_turns);
        sum.api_duration_ms = told(sum.api_duration_ms, more.api_duration_ms);
        sum.input_tokens = told(sum.input_tokens, more.input_tokens);
        sum.cache_creation_input_tokens =
            told(sum.cache_creation_input_tokens, more.cache_creation_input_tokens);
        sum.cache_read_input_tokens =
            told(sum.cache_read_input_tokens, more.cache_read_input_tokens);
        sum.output_tokens = told(sum.output_tokens, more.output_tokens);
        for (model, figures) in &more.per_model {
            add_figures(
                sum.per_model.entry(model.clone()).or_insert_with(|| ResultFields::new().into()),
                figures,
            );
        }
        // A sum with an unknown amount would be too low, and the budgets rely on it.
        self.usd = self.usd.zip(other.usd).map(|(a, b)| a + b);
        self
    }
}

impl SessionTotals {
    fn read(fields: &ResultFields) -> SessionTotals {
        SessionTotals {
            usd: fields.get("total_cost_usd").and_then(Json::as_f64).unwrap_or(0.0).max(0.0),
            api_ms: fields.get("duration_api_ms").map_or(0, parse_count),
            per_model: object(fields.get("modelUsage")).cloned().unwrap_or_default(),
        }
    }
}

impl TokenCounts {
    fn add_reported(&mut self, usage: &ResultFields) {
        let get = |key: &str| usage.get(key).map_or(0, parse_count);
        add_saturating(&mut self.input, get("input_tokens"));
        add_saturating(&mut self.cache_creation, get("cache_creation_input_tokens"));
        add_saturating(&mut self.cache_read, get("cache_read_input_tokens"));
        add_saturating(&mut self.output, get("output_tokens"));
    }

    fn add_model(&mut self, figures: &Json) {
        add_saturating(&mut self.input, parse_count(&figures["inputTokens"]));
        add_saturating(&mut self.cache_creation, parse_count(&figures["cacheCreationInputTokens"]));
        add_saturating(&mut self.cache_read, parse_count(&figures["cacheReadInputTokens"]));
        add_saturating(&mut self.output, parse_count(&figures["outputTokens"]));
    }
}

/// Returns the increase of each model's figures. If any figure of a model fell, its totals
/// restarted from zero and count in full.
fn difference(now: &ResultFields, before: &SessionTotals) -> ResultFields {
    let mut risen = now.clone();
    for (model, figures) in &mut risen {
        let Some(earlier) = before.per_model.get(model) else { continue };
        // Decided for all figures together: they restart at the same moment.
        let began_anew = has_decreased(figures, earlier);
        let Json::Object(figures) = figures else { continue };
        for (key, figure) in figures.iter_mut().filter(|_| !began_anew) {
            if let Some(amount) = parse_figure(key, figure) {
                *figure = amount.minus(parse_figure(key, &earlier[key.as_str()])).into_json();
            }
        }
    }
    // Drop models that were not used since.
    risen.retain(|model, figures| !before.per_model.contains_key(model) || is_used(figures));
    risen
}

fn has_decreased(figures: &Json, earlier: &Json) -> bool {
    let Json::Object(figures) = figures else { return false };
    figures.iter().any(|(key, figure)| {
        let earlier = parse_figure(key, &earlier[key.as_str()]);
        parse_figure(key, figure)
            .zip(earlier)
            .is_some_and(|(now, then)| now.as_f64() < then.as_f64())
    })
}

fn is_used(figures: &Json) -> bool {
    let Json::Object(figures) = figures else { return false };
    figures.iter().filter_map(|(key, figure)| parse_figure(key, figure)).any(|n| n.as_f64() > 0.0)
}

/// Adds a figure. It comes from the agent and may be any number, so the sum saturates.
fn add_saturating(sum: &mut i64, more: i64) {
    *sum = sum.saturating_add(more);
}

/// Adds counts. Limits and texts take the latest value.
fn add_figures(sum: &mut Json, figures: &Json) {
    let (Json::Object(sum), Json::Object(figures)) = (sum, figures) else { return };
    for (key, figure) in figures {
        let total = match (
            parse_figure(key, figure),
            sum.get(key).and_then(|sum| parse_figure(key, sum)),
        ) {
            (Some(more), Some(sum)) => sum.plus(more).into_json(),
            _ => figure.clone(),
        };
        sum.insert(key.clone(), total);
    }
}

/// Figure of a usage report. Whole numbers stay whole.
#[derive(Clone, Copy)]
enum UsageFigure {
    Whole(i64),
    Decimal(f64),
}

impl UsageFigure {
    fn as_f64(self) -> f64 {
        match self {
            UsageFigure::Whole(n) => n as f64,
            UsageFigure::Decimal(n) => n,
        }
    }

    fn plus(self, other: UsageFigure) -> UsageFigure {
        match (self, other) {
            (UsageFigure::Whole(a), UsageFigure::Whole(b)) => {
                UsageFigure::Whole(a.saturating_add(b))
            }
            (a, b) => UsageFigure::Decimal(a.as_f64() + b.as_f64()),
        }
    }

    fn minus(self, other: Option<UsageFigure>) -> UsageFigure {
        match (self, other) {
            (amount, None) => amount,
            (UsageFigure::Whole(a), Some(UsageFigure::Whole(b))) => {
                UsageFigure::Whole(a.saturating_sub(b))
            }
            (a, Some(b)) => UsageFigure::Decimal(a.as_f64() - b.as_f64()),
        }
    }

    fn into_json(self) -> Json {
        match self {
            UsageFigure::Whole(n) => n.into(),
            UsageFigure::Decimal(n) => n.into(),
        }
    }
}

fn parse_figure(key: &str, figure: &Json) -> Option<UsageFigure> {
    // A limit of the model is the same in each result; a sum of it means nothing.
    if MODEL_LIMIT_KEYS.contains(&key) {
        return None;
    }
    figure.as_i64().map(UsageFigure::Whole).or_else(|| figure.as_f64().map(UsageFigure::Decimal))
}

fn increase_since(now: f64, before: f64) -> f64 {
    // A total that fell has restarted from zero.
    if now < before { now } else { now - before }
}

/// Returns true if a result reports an amount that is negative or not a number.
fn has_invalid_cost(fields: &ResultFields, new: Option<&ResultFields>) -> bool {
    let is_invalid = |usd: &Json| !usd.is_null() && !usd.as_f64().is_some_and(|usd| usd >= 0.0);
    fields.get("total_cost_usd").is_some_and(is_invalid)
        || new.is_some_and(|new| new.values().any(|figures| is_invalid(&figures["costUSD"])))
}

fn remove_negative_figures(per_model: &mut ResultFields) {
    let figures = per_model.values_mut().filter_map(Json::as_object_mut);
    for figure in figures.flat_map(|figures| figures.values_mut()) {
        if figure.as_f64().is_some_and(|figure| figure < 0.0) {
            *figure = 0.into();
        }
    }
}

fn figures_cost(figures: &Json) -> f64 {
    figures["costUSD"].as_f64().unwrap_or(0.0)
}

/// Reads a count. Some versions write whole numbers as decimals.
fn parse_count(value: &Json) -> i64 {
    let count = value.as_i64().or_else(|| value.as_f64().map(|n| n.round() as i64));
    // A negative count would reduce the figures of earlier results.
    count.unwrap_or(0).max(0)
}

fn object(value: Option<&Json>) -> Option<&ResultFields> {
    value.and_then(Json::as_object)
}
