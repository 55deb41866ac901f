//! Costs page: money by day, agent and model, and the budgets.

use heeler_query::charts::DailyCost;
use heeler_query::costs::CostReport;
use heeler_query::fleet::BudgetSummary;
use maud::{Markup, html};

use crate::charts;
use crate::components::{format_usd, isolated_text, meter};
use crate::{DashboardSection, PageFrame};

/// Data of the page.
#[derive(Debug, Clone, PartialEq)]
pub struct CostsView {
    /// Costs of the period by day, oldest first.
    pub days: Vec<DailyCost>,
    /// Costs of the period by agent and by model.
    pub agents: CostReport,
    pub models: CostReport,
    /// Budgets, or the reason for which they are unknown.
    pub budgets: Result<Vec<BudgetSummary>, String>,
}

pub fn page(frame: &PageFrame, view: &CostsView) -> Markup {
    let days = view.days.len();
    // A fleet without a budget is reported too, without limits.
    let limited = |budget: &&BudgetSummary| {
        budget.day_limit_usd.is_some() || budget.total_limit_usd.is_some()
    };
    let budgets = view.budgets.as_ref().map(|all| all.iter().filter(limited).collect::<Vec<_>>());
    let content = html! {
        div.head {
            h1 { "Costs" }
            span.muted.num { (format_usd(view.agents.total_usd)) " in " (days) " days" }
        }
        section.card #by-day data-live aria-labelledby="h-days" {
            header { h2 #h-days { "By day" } }
            div.pad { (charts::cost_chart(&view.days)) }
        }
        div #budgets data-live { (budgets_card(budgets)) }
        div.split.even #groups data-live {
            (group_card("h-agents", "By agent", &view.agents))
            (group_card("h-models", "By model", &view.models))
        }
        p.note {
            "Agents report their costs themselves. A run that has not reported its cost counts with its reservation. "
            code { "heeler costs" } " prints the same figures."
        }
    };
    frame.page(DashboardSection::Costs, "Costs", content)
}

fn group_card(id: &str, title: &str, report: &CostReport) -> Markup {
    // At least a millionth, so that a list of zeros does not divide by zero.
    let most = report.costs.iter().map(|cost| cost.cost_usd).fold(1e-6, f64::max);
    html! {
        section.card aria-labelledby=(id) {
            header { h2 id=(id) { (title) } }
            @if report.costs.is_empty() { p.empty.small { "No costs." } }
            @else {
                ul.list role="list" {
                    @for cost in &report.costs {
                        li data-row {
                            div.line {
                                @match cost.name() {
                                    "" => span.muted { "unknown" },
                                    name => span.cut.grow { (isolated_text(name)) },
                                }
                                span.end.num { (format_usd(cost.cost_usd)) }
                            }
                            (meter(cost.cost_usd, most, &format_usd(cost.cost_usd)))
                        }
                    }
                }
            }
        }
    }
}

fn budgets_card(budgets: Result<Vec<&BudgetSummary>, &String>) -> Markup {
    html! {
        section.card aria-labelledby="h-budgets" {
            header { h2 #h-budgets { "Budgets" } }
            @match budgets {
                Err(why) => { p.empty.small { "The daemon does not report them: " (why) } }
                Ok(budgets) if budgets.is_empty() => {
                    p.empty.small { "No agent has a budget. " code { "budget: {day: 5}" } " in the config sets one." }
                }
                Ok(budgets) => {
                    ul.list role="list" { @for budget in budgets { (budget_item(budget)) } }
                }
            }
        }
    }
}

fn budget_item(budget: &BudgetSummary) -> Markup {
    let lines = [
        ("today", budget.day_spent_usd, budget.day_limit_usd),
        ("in total", budget.total_spent_usd, budget.total_limit_usd),
    ];
    html! {
        li data-row {
            strong { (isolated_text(&budget.whose)) }
            @for (period, spent, limit) in lines {
                @if let Some(limit) = limit {
                    div.line {
                        span.muted { (period) }
                        span.end.num { (format_usd(spent)) " of " (format_usd(limit)) }
                    }
                    (meter(spent + budget.reserved_usd, limit, &format!("{} of {}", format_usd(spent), format_usd(limit))))
                }
            }
            @if budget.reserved_usd > 0.0 {
                p.small.muted { (format_usd(budget.reserved_usd)) " of it is reserved for runs that have not reported their cost." }
            }
        }
    }
}
