//! Budget decisions at every edge: no budget is exceeded by more than one reply per run.

mod simulation;

use jiff::civil::date;

use super::*;

const CENT: i64 = 10_000;
const DOLLAR: i64 = 1_000_000;

fn limits(day: Option<i64>, total: Option<i64>) -> SpendingLimits {
    SpendingLimits { day, total }
}

/// Fleet with the agents `a`, which has limits, and `b`, which has none.
fn ledger(fleet: SpendingLimits, agent: SpendingLimits) -> BudgetLedger {
    let mut ledger = BudgetLedger::new(date(2026, 1, 1), SpendingLimits::default());
    ledger.set_limits(fleet, [("a".to_owned(), agent)].into_iter());
    ledger
}

#[test]
fn without_any_limit_nothing_is_reserved() {
    let ledger = ledger(SpendingLimits::default(), SpendingLimits::default());
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Unlimited);
    assert_eq!(ledger.check_budget("a", Some(DOLLAR)), BudgetDecision::Unlimited);
}

#[test]
fn a_run_reserves_its_own_limit_or_a_default_but_never_more_than_is_left() {
    let ledger = ledger(SpendingLimits::default(), limits(None, Some(15 * DOLLAR)));
    assert_eq!(ledger.check_budget("a", Some(2 * DOLLAR)), BudgetDecision::Reserve(2 * DOLLAR));
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Reserve(RESERVATION_DEFAULT));
    assert_eq!(ledger.check_budget("a", Some(20 * DOLLAR)), BudgetDecision::Reserve(15 * DOLLAR));
    assert_eq!(
        ledger.check_budget("b", None),
        BudgetDecision::Unlimited,
        "the limit of one agent is not another's"
    );
}

#[test]
fn runs_at_the_same_time_share_what_is_left_and_then_wait() {
    let mut ledger = ledger(SpendingLimits::default(), limits(Some(15 * DOLLAR), None));
    ledger.reserve("a", 10 * DOLLAR);
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Reserve(5 * DOLLAR));
    ledger.reserve("a", 5 * DOLLAR - CENT);
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Reserve(CENT));
    ledger.reserve("a", 1);
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::AllReserved);
    // A run that wants less than the minimum may have it, while that much is left.
    assert_eq!(ledger.check_budget("a", Some(CENT - 1)), BudgetDecision::Reserve(CENT - 1));
    assert_eq!(ledger.check_budget("a", Some(CENT)), BudgetDecision::AllReserved);
    ledger.release("a", 10 * DOLLAR);
    ledger.spend("a", date(2026, 1, 1), DOLLAR);
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Reserve(9 * DOLLAR + CENT - 1));
    assert_eq!(ledger.agent("a").reserved, ledger.fleet().reserved);
}

#[test]
fn money_that_is_spent_is_told_apart_from_money_that_is_held() {
    let spent = |micros: i64| {
        let mut ledger = ledger(SpendingLimits::default(), limits(None, Some(DOLLAR)));
        ledger.spend("a", date(2026, 1, 1), micros);
        ledger.check_budget("a", None)
    };
    let (limit, of_fleet) = (DOLLAR, false);
    assert_eq!(spent(DOLLAR - CENT), BudgetDecision::Reserve(CENT));
    assert_eq!(
        spent(DOLLAR - CENT + 1),
        BudgetDecision::TotalLimitReached { is_fleet_limit: of_fleet, limit }
    );
    assert_eq!(
        spent(i64::MAX),
        BudgetDecision::TotalLimitReached { is_fleet_limit: of_fleet, limit }
    );
    // A limit below the smallest reservation allows no run.
    let (limit, of_fleet) = (CENT - 1, false);
    let small = ledger(SpendingLimits::default(), limits(Some(limit), None));
    assert_eq!(
        small.check_budget("a", Some(1)),
        BudgetDecision::DayLimitReached { is_fleet_limit: of_fleet, limit }
    );
}

#[test]
fn the_total_the_day_the_agent_and_the_fleet_each_have_their_say() {
    let (today, two) = (date(2026, 1, 1), 2 * DOLLAR);
    let mut ledger = ledger(limits(Some(4 * DOLLAR), Some(20 * DOLLAR)), limits(Some(two), None));
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Reserve(two));
    assert_eq!(ledger.check_budget("b", None), BudgetDecision::Reserve(4 * DOLLAR));
    ledger.spend("b", today, 3 * DOLLAR);
    assert_eq!(
        ledger.check_budget("a", None),
        BudgetDecision::Reserve(DOLLAR),
        "the fleet has no more"
    );
    ledger.spend("a", today, two);
    let of_agent = BudgetDecision::DayLimitReached { is_fleet_limit: false, limit: two };
    assert_eq!(ledger.check_budget("a", None), of_agent, "its own limit is told first");
    let of_fleet = BudgetDecision::DayLimitReached { is_fleet_limit: true, limit: 4 * DOLLAR };
    assert_eq!(ledger.check_budget("b", None), of_fleet);
    ledger.spend("b", date(2025, 12, 31), 16 * DOLLAR);
    let in_all = BudgetDecision::TotalLimitReached { is_fleet_limit: true, limit: 20 * DOLLAR };
    assert_eq!(ledger.check_budget("b", None), in_all);
    assert_eq!((ledger.fleet().today, ledger.fleet().total), (5 * DOLLAR, 21 * DOLLAR));
}

#[test]
fn a_new_day_begins_with_what_runs_hold_and_pays_only_for_its_own() {
    let (monday, tuesday) = (date(2026, 1, 5), date(2026, 1, 6));
    let mut ledger = ledger(SpendingLimits::default(), limits(Some(3 * DOLLAR), Some(10 * DOLLAR)));
    ledger.set_day(monday, Vec::new());
    ledger.spend("a", monday, DOLLAR);
    ledger.reserve("a", 2 * DOLLAR);
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::AllReserved);
    ledger.set_day(tuesday, Vec::new());
    assert_eq!(
        ledger.check_budget("a", None),
        BudgetDecision::Reserve(DOLLAR),
        "the run of yesterday goes on"
    );
    ledger.release("a", 2 * DOLLAR);
    ledger.spend("a", monday, 2 * DOLLAR);
    assert_eq!(ledger.check_budget("a", None), BudgetDecision::Reserve(3 * DOLLAR));
    assert_eq!((ledger.agent("a").today, ledger.agent("a").total), (0, 3 * DOLLAR));
}

#[test]
fn a_day_that_comes_again_is_not_forgotten() {
    let (monday, tuesday) = (date(2026, 1, 5), date(2026, 1, 6));
    let mut ledger = ledger(SpendingLimits::default(), limits(Some(3 * DOLLAR), None));
    ledger.set_day(tuesday, Vec::new());
    // The clock is set back: the record has the spending of the day before.
    ledger.set_day(monday, vec![("a".to_owned(), 3 * DOLLAR), ("b".to_owned(), DOLLAR)]);
    assert!(matches!(ledger.check_budget("a", None), BudgetDecision::DayLimitReached { .. }));
    assert_eq!((ledger.day(), ledger.fleet().today), (monday, 4 * DOLLAR));
}

#[test]
fn other_limits_count_at_once_and_for_what_was_spent_before() {
    let mut ledger = ledger(SpendingLimits::default(), limits(None, Some(DOLLAR)));
    ledger.spend("a", date(2026, 1, 1), 2 * DOLLAR);
    ledger.set_limits(limits(None, Some(5 * DOLLAR)), std::iter::empty());
    assert_eq!(
        ledger.check_budget("a", None),
        BudgetDecision::Reserve(3 * DOLLAR),
        "only the fleet's is left"
    );
    ledger.set_limits(limits(Some(DOLLAR), None), std::iter::empty());
    assert!(matches!(
        ledger.check_budget("a", None),
        BudgetDecision::DayLimitReached { is_fleet_limit: true, .. }
    ));
}

#[test]
fn a_fleet_within_the_fleet_has_a_limit_of_its_own() {
    let mut ledger = BudgetLedger::new(date(2026, 1, 1), SpendingLimits::default());
    ledger.set_subfleet_limits([("web".to_owned(), limits(Some(3 * DOLLAR), None))].into_iter());
    assert_eq!(ledger.check_budget("webmaster", None), BudgetDecision::Unlimited);
    assert_eq!(ledger.check_budget("web.a", None), BudgetDecision::Reserve(3 * DOLLAR));
    ledger.reserve("web.a", 2 * DOLLAR);
    assert_eq!(ledger.check_budget("web.shop.b", None), BudgetDecision::Reserve(DOLLAR));
    ledger.reserve("web.shop.b", DOLLAR);
    assert_eq!(ledger.check_budget("web.a", None), BudgetDecision::AllReserved);
    ledger.release("web.a", 2 * DOLLAR);
    ledger.spend("web.a", date(2026, 1, 1), 3 * DOLLAR);
    let spent = BudgetDecision::DayLimitReached { is_fleet_limit: true, limit: 3 * DOLLAR };
    assert_eq!(ledger.check_budget("web.shop.b", None), spent);
    assert_eq!(ledger.check_budget("other", None), BudgetDecision::Unlimited);
}
