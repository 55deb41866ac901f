//! Workflow graph as SVG: phases without dependencies on top, dependent phases below.
//!
//! Each phase links to its entry in the list next to the graph, which has the same content as text.

use std::collections::HashMap;

use maud::{Markup, html};

use crate::components::visible_line;

const WIDTH: usize = 176;
const HEIGHT: usize = 46;
const GAP_X: usize = 22;
const GAP_Y: usize = 34;
const MARGIN: usize = 6;
/// Characters of a title that fit into its box.
const TITLE_CHARS_MAX: usize = 19;
const SUB_CHARS_MAX: usize = 24;

/// Phase in the graph.
#[derive(Debug, Clone, Default)]
pub(crate) struct GraphNode {
    /// Name by which other phases depend on it.
    pub(crate) name: String,
    /// Displayed title.
    pub(crate) title: String,
    /// Executor of the phase.
    pub(crate) subtitle: String,
    /// Status of the phase; empty outside of a run.
    pub(crate) state: String,
    /// Names of the phases it depends on.
    pub(crate) after: Vec<String>,
    /// The phase also starts if some dependencies did not succeed.
    pub(crate) allows_failures: bool,
    /// A gate follows the phase.
    pub(crate) has_gate: bool,
}

/// Returns the symbol of a status.
fn state_symbol(state: &str) -> &'static str {
    match state {
        "waiting" => "·",
        "running" => "▶",
        "asking" => "?",
        "succeeded" => "✓",
        "failed" => "✗",
        "skipped" => "–",
        "cancelled" => "×",
        _ => "",
    }
}

/// Position of a box.
#[derive(Debug, Clone, Copy, PartialEq)]
struct NodePosition {
    x: usize,
    y: usize,
}

/// Returns the depth of each phase: the length of its longest chain of dependencies. Depths in a
/// cycle are bounded.
fn depths(nodes: &[GraphNode], places: &HashMap<&str, usize>) -> Vec<usize> {
    let mut depths = vec![0; nodes.len()];
    // This many passes are enough without a cycle; with one, the loop would never settle.
    for _ in 0..nodes.len() {
        let mut is_settled = true;
        for (at, node) in nodes.iter().enumerate() {
            let above = node.after.iter().filter_map(|name| places.get(name.as_str()));
            let depth = above.map(|from| depths[*from] + 1).max().unwrap_or(0).min(nodes.len());
            if depth > depths[at] {
                (depths[at], is_settled) = (depth, false);
            }
        }
        if is_settled {
            break;
        }
    }
    depths
}

/// Places the boxes: rows by depth, in each row near their dependencies.
fn place_nodes(nodes: &[GraphNode]) -> (Vec<NodePosition>, usize, usize) {
    let places: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let depths = depths(nodes, &places);
    // In a cycle, depths are skipped. They must not become empty rows.
    let mut used: Vec<usize> = depths.clone();
    used.sort_unstable();
    used.dedup();
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); used.len()];
    for (at, depth) in depths.iter().enumerate() {
        let row = used.binary_search(depth).expect("every depth is in the list");
        rows[row].push(at);
    }
    let widest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = widest * WIDTH + widest.saturating_sub(1) * GAP_X + 2 * MARGIN;
    // A row is placed after those above it, so the positions of its dependencies are known.
    let mut positions = vec![NodePosition { x: 0, y: 0 }; nodes.len()];
    for (number, row) in rows.iter_mut().enumerate() {
        let preferred_x = |at: &usize| {
            let above: Vec<usize> = nodes[*at]
                .after
                .iter()
                .filter_map(|name| places.get(name.as_str()))
                .map(|from| positions[*from].x)
                .collect();
            above.iter().sum::<usize>().checked_div(above.len()).unwrap_or(0)
        };
        let preferred_xs: HashMap<usize, usize> =
            row.iter().map(|at| (*at, preferred_x(at))).collect();
        row.sort_by_key(|at| (preferred_xs[at], *at));
        let taken = row.len() * WIDTH + (row.len() - 1) * GAP_X;
        let left = (width - taken) / 2;
        for (place, at) in row.iter().enumerate() {
            let (x, y) = (left + place * (WIDTH + GAP_X), MARGIN + number * (HEIGHT + GAP_Y));
            positions[*at] = NodePosition { x, y };
        }
    }
    // The last row has no gap below it. Without rows, there is no gap to subtract.
    let height = rows.len() * (HEIGHT + GAP_Y) - GAP_Y.min(rows.len() * GAP_Y) + 2 * MARGIN;
    (positions, width, height)
}

/// Returns the graph; `label` describes it for screen readers.
pub(crate) fn svg(nodes: &[GraphNode], label: &str) -> Markup {
    let (positions, width, height) = place_nodes(nodes);
    let at: HashMap<&str, NodePosition> = nodes
        .iter()
        .zip(&positions)
        .map(|(node, position)| (node.name.as_str(), *position))
        .collect();
    html! {
        div.graph {
            svg role="group" aria-label=(label) width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } {
                // SVG paints in this order, so boxes cover the ends of the lines.
                @for (node, position) in nodes.iter().zip(&positions) {
                    @for from in node.after.iter().filter_map(|name| at.get(name.as_str())) {
                        (draw_edge(*from, *position, node.allows_failures))
                    }
                }
                @for (node, position) in nodes.iter().zip(&positions) { (draw_node(node, *position)) }
            }
        }
    }
}

fn draw_edge(from: NodePosition, to: NodePosition, is_lenient: bool) -> Markup {
    let (x1, y1) = (from.x + WIDTH / 2, from.y + HEIGHT);
    // The line ends where the arrow head begins.
    let (x2, y2) = (to.x + WIDTH / 2, to.y.saturating_sub(6));
    let middle = GAP_Y / 2;
    let class = if is_lenient { "edge dashed" } else { "edge" };
    let line =
        format!("M{x1} {y1}C{x1} {} {x2} {} {x2} {y2}", y1 + middle, y2.saturating_sub(middle));
    let head = format!("M{} {y2}h8l-4 6z", x2.saturating_sub(4));
    html! {
        path class=(class) d=(line) aria-hidden="true" {}
        path.head d=(head) aria-hidden="true" {}
    }
}

fn draw_node(node: &GraphNode, position: NodePosition) -> Markup {
    let NodePosition { x, y } = position;
    let words = [node.state.as_str(), node.subtitle.as_str()];
    let sub = words.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" · ");
    let sign = state_symbol(&node.state);
    let indent = if sign.is_empty() { 12 } else { 28 };
    html! {
        a href={ "#phase-" (anchor(&node.name)) } {
            g.node data-s=(node.state) {
                title { (visible_line(&node.title)) " " (visible_line(&sub)) }
                rect x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx="7" {}
                @if node.has_gate { circle.gate cx=(x + WIDTH - 2) cy=(y + HEIGHT - 2) r="5" {} }
                text.sign x=(x + 15) y=(y + 28) aria-hidden="true" { (sign) }
                text.title x=(x + indent) y=(y + if sub.is_empty() { 28 } else { 20 }) { (truncate_line(&node.title, TITLE_CHARS_MAX)) }
                text.sub x=(x + indent) y=(y + 36) { (truncate_line(&sub, SUB_CHARS_MAX)) }
            }
        }
    }
}

/// Returns a name as part of an element ID.
pub(crate) fn anchor(name: &str) -> String {
    // Names of phases may contain characters that a fragment would have to escape.
    name.chars().map(|c| if c.is_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

fn truncate_line(text: &str, chars_max: usize) -> String {
    let line = visible_line(text);
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, after: &[&str]) -> GraphNode {
        let after = after.iter().map(ToString::to_string).collect();
        GraphNode { name: name.to_owned(), title: name.to_owned(), after, ..GraphNode::default() }
    }

    #[test]
    fn what_waits_stands_below_what_it_waits_for_whatever_the_order() {
        let nodes = [node("d", &["b", "c"]), node("b", &["a"]), node("c", &["a"]), node("a", &[])];
        let (positions, width, height) = place_nodes(&nodes);
        let [d, b, c, a] = positions[..] else { panic!("four spots") };
        assert!(a.y < b.y && b.y == c.y && c.y < d.y);
        assert_ne!(b.x, c.x);
        assert!(positions.iter().all(|it| it.x + WIDTH <= width && it.y + HEIGHT <= height));
    }

    #[test]
    fn a_circle_an_unknown_name_and_no_phase_at_all_are_drawn() {
        let nodes = [node("a", &["b"]), node("b", &["a"]), node("c", &["gone"])];
        assert!(svg(&nodes, "x").into_string().contains("phase-c"));
        assert!(svg(&[], "x").into_string().contains("<svg"));
    }

    #[test]
    fn names_of_phases_are_no_markup() {
        let nasty = GraphNode { title: "<script>x".to_owned(), ..node("\"><img>", &[]) };
        let html = svg(&[nasty], "\"<b>").into_string();
        assert!(
            !html.contains("<script") && !html.contains("<img") && !html.contains("<b>"),
            "{html}"
        );
    }
}
