use super::*;
use crate::rows::{Machine, Spread};

fn sample() -> Document {
    crate::rows::tests::full()
}

#[test]
fn the_page_has_every_part_and_loads_nothing() {
    let document = sample();
    let page = Report::new(&document)
        .title("A <title>")
        .drawing(Drawing::Text("node 0\n  L3 <0>"))
        .to_html()
        .unwrap();
    for part in [
        "A &lt;title&gt;",
        "L3 &lt;0&gt;",
        "<h2>Bars</h2>",
        "class=\"holds\"",
        "<h2>high</h2>",
        "<svg viewBox",
        "1159.0 ±1.0",
        "Settings",
        "cache, numa",
        "Versions",
        "warm (compute_ms: 1.90",
        "prefers-color-scheme: dark",
        "width=device-width",
        "&quot;cmwq-rows&quot;",
    ] {
        assert!(page.contains(part), "{part:?} is missing");
    }
    for bad in ["<script", "src=", "http://", "https://", "@import", "url("] {
        assert!(!page.contains(bad), "{bad:?} is in the page");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn medians_are_shown_on_request() {
    let document = sample();
    let page = Report::new(&document)
        .centre(Centre::Median)
        .to_html()
        .unwrap();
    assert!(page.contains("1159 [1158..1160]"), "median with range");
    assert!(page.contains("median, whiskers"));
}

#[test]
fn an_svg_drawing_is_taken_only_when_it_is_harmless() {
    let document = sample();
    let with = |svg| Report::new(&document).drawing(Drawing::Svg(svg)).to_html();
    let page = with(" <svg viewBox=\"0 0 9 9\"><rect width=\"9\"/></svg>\n").unwrap();
    assert!(page.contains("<rect width=\"9\"/></svg></div>"));
    assert!(with("<svg><text>16 cores on one socket, iron=1</text></svg>").is_ok());
    for bad in [
        "hello",
        "<svg><script>1</script></svg>",
        "<svg onload=\"x()\"></svg>",
        "<svg/ONLOAD=x></svg>",
        "<svg id=\"a\"onclick = \"x()\"></svg>",
        "<svg><a href=\"http://x\"/></svg>",
        "<svg><rect fill=\"url(http://x)\"/></svg>",
        "<svg><foreignObject/></svg>",
        "<svg></svg><p>",
    ] {
        assert!(matches!(with(bad), Err(ReportError::Drawing(_))), "{bad}");
    }
}

#[test]
fn an_invalid_document_makes_no_page() {
    let mut document = sample();
    document.rows[0].setting = String::new();
    assert!(matches!(
        Report::new(&document).to_html(),
        Err(ReportError::Document(_))
    ));
}

#[test]
fn a_failed_setting_has_its_note_and_no_bar() {
    let mut document = Document::new(
        "t",
        Machine {
            cpus: 1,
            ..Machine::default()
        },
    );
    document
        .rows
        .push(Row::new("s", "a").figure("x", "ns", Spread::exact(2.0)));
    document.rows.push(Row {
        error: Some("not <installed>".into()),
        ..Row::new("s", "b")
    });
    let page = Report::new(&document).to_html().unwrap();
    assert!(page.contains("not &lt;installed&gt;"));
    assert_eq!(page.matches("<rect ").count(), 1);
}
