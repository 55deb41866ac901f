//! Pictures of the documentation: the screen as SVG. `UPDATE_EXPECT=1` writes them again.

use std::fmt::Write as _;

use expect_test::expect_file;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::*;

/// Size of a cell, in pixels.
const CELL: (f64, f64) = (8.4, 18.0);
const MARGIN: f64 = 12.0;
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d7dae0";

fn colour(colour: Color) -> &'static str {
    match colour {
        Color::Red | Color::LightRed => "#f07178",
        Color::Green => "#7ec699",
        Color::LightGreen => "#b5e0a0",
        Color::Yellow | Color::LightYellow => "#f2cc8f",
        Color::Blue | Color::LightBlue => "#8ab8ff",
        Color::Magenta | Color::LightMagenta => "#d6a2e8",
        Color::Cyan | Color::LightCyan => "#6fd0d8",
        _ => FOREGROUND,
    }
}

/// Appends cells of one row and style.
fn push_run(svg: &mut String, x: usize, y: usize, cells: &[&Cell]) {
    let text: String = cells.iter().map(|cell| cell.symbol()).collect();
    let style = cells[0].style();
    let is_reversed = style.add_modifier.contains(Modifier::REVERSED);
    let (left, top) = (MARGIN + x as f64 * CELL.0, MARGIN + y as f64 * CELL.1);
    if is_reversed {
        let width = cells.len() as f64 * CELL.0;
        writeln!(
            svg,
            r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{}" fill="{FOREGROUND}"/>"#,
            CELL.1
        )
        .unwrap();
    }
    if text.trim().is_empty() {
        return;
    }
    let fill = if is_reversed { BACKGROUND } else { colour(style.fg.unwrap_or(Color::Reset)) };
    let mut attributes = String::new();
    for (modifier, attribute) in [
        (Modifier::BOLD, r#" font-weight="700""#),
        (Modifier::ITALIC, r#" font-style="italic""#),
        (Modifier::UNDERLINED, r#" text-decoration="underline""#),
        (Modifier::DIM, r#" opacity="0.65""#),
    ] {
        if style.add_modifier.contains(modifier) {
            attributes.push_str(attribute);
        }
    }
    let text = text.trim_end().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(
        svg,
        r#"<text x="{left:.1}" y="{:.1}" fill="{fill}"{attributes} xml:space="preserve">{text}</text>"#,
        top + CELL.1 - 5.0
    )
    .unwrap();
}

fn svg(buffer: &Buffer, title: &str) -> String {
    let (columns, rows) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let width = columns as f64 * CELL.0 + 2.0 * MARGIN;
    let height = rows as f64 * CELL.1 + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for y in 0..rows {
        let row: Vec<&Cell> = (0..columns).map(|x| &buffer[(x as u16, y as u16)]).collect();
        let mut x = 0;
        while x < columns {
            let same = row[x..].iter().take_while(|cell| cell.style() == row[x].style()).count();
            push_run(&mut svg, x, y, &row[x..x + same]);
            x += same;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[test]
fn the_picture_of_a_conversation_is_up_to_date() {
    let mut rig = ScreenFixture::with_theme(88, 34, TerminalTheme::dark());
    rig.say(EntryRole::User, "make the total of an empty cart 0, and test it");
    rig.call(
        "1",
        "TodoWrite",
        json!({"todos": [
            {"content": "read the cart", "status": "completed"},
            {"content": "fix the total", "status": "completed"},
            {"content": "add a test", "status": "in_progress"},
        ]}),
    );
    rig.gave("1", "ok", false);
    rig.call(
        "2",
        "Edit",
        json!({"file_path": "src/cart.ts", "old_string": "  return sum(items);", "new_string": "  return items.length ? sum(items) : 0;"}),
    );
    rig.gave("2", "ok", false);
    rig.call("3", "Bash", json!({"command": "npm test"}));
    rig.gave("3", "12 passed", false);
    rig.say(
        EntryRole::Assistant,
        "The total of an empty cart is **0** now:\n\n```ts\n// An empty cart costs nothing.\nexport function total(items: Item[]) {\n  return items.length ? sum(items) : 0;\n}\n```\n\n| test | result |\n|---|---:|\n| empty cart | passed |\n| 3 items | passed |",
    );
    rig.screen.handle_output(ChatOutput::Status(Box::new(ConversationStatus {
        agent: "coder".to_owned(),
        mode: Some("acceptEdits".to_owned()),
        model: Some("claude-sonnet".to_owned()),
        cost_usd: 0.14,
        context_tokens: Some(34_000),
        folder: Some("shop".to_owned()),
        branch: Some("main".to_owned()),
        ..ConversationStatus::default()
    })));
    rig.keys("also for @cart");
    rig.draw();
    let picture = svg(
        rig.terminal.backend().buffer(),
        "heeler chat: an edit as a diff, code with colours, a table",
    );
    expect_file!["../../../../docs/images/chat.svg"].assert_eq(&picture);
}
