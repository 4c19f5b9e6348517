//! The report in a real browser: the page is drawn, in light and dark, and fits a phone.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cmwq_measure::rows::CpuUtilOf;
use cmwq_measure::{
    Against, Bar, Document, Drawing, LatencySummary, Machine, Observation, Plan, Relation, Report,
    Row, Spread, rounds,
};

/// Bandwidths as published for a 12-core machine with four L3 caches: something realistic to look at.
const BANDWIDTH: [(&str, &str, f64, f64, f64); 8] = [
    ("med", "system", 1155.40, 0.89, 97.41),
    ("med", "cache", 1154.40, 1.14, 96.15),
    ("med", "cache-strict", 1112.00, 4.64, 93.26),
    ("med", "default", 1163.80, 0.45, 96.90),
    ("low", "system", 993.60, 1.82, 75.49),
    ("low", "cache", 973.40, 1.52, 74.90),
    ("low", "cache-strict", 828.20, 4.49, 66.84),
    ("low", "default", 998.40, 4.04, 74.91),
];

const MACHINE: &str = "\
node 0
├─ L3 0   0 1 2   12 13 14
├─ L3 1   3 4 5   15 16 17
├─ L3 2   6 7 8   18 19 20
└─ L3 3   9 10 11 21 22 23
";

fn document() -> Document {
    let machine = Machine {
        name: Some("ryzen-3900x".into()),
        cpus: 24,
        simulated: true,
        ..Machine::default()
    };
    let mut document = Document::new("cmwq bench crypt", machine)
        .setting("rounds", 5)
        .setting("block_sizes", serde_json::json!(["32k", "512"]))
        .versioned("cmwq", env!("CARGO_PKG_VERSION"));
    for (scenario, setting, mean, stdev, cpu) in BANDWIDTH {
        let mut row = Row::new(scenario, setting);
        let system = if scenario == "med" { 1155.40 } else { 993.60 };
        row.bandwidth_mib_s = Some(Spread {
            mean,
            stdev,
            ..Spread::default()
        });
        row.cpu_util_percent = Some(cpu);
        row.cpu_util_of = Some(CpuUtilOf::Machine);
        row.vs_system_percent = Some((mean / system - 1.0) * 100.0);
        document.rows.push(row);
    }
    for (setting, mean, p50, p95, p99) in [
        ("system", 30.96, 29.0, 44.0, 46.0),
        ("cpu-strict", 28.0, 28.0, 31.0, 32.0),
        ("default", 13.34, 10.4, 28.3, 30.6),
    ] {
        let mut row = Row::new("think", setting);
        row.latency_us = Some(LatencySummary {
            mean: Some(mean),
            p50: Some(p50),
            p95: Some(p95),
            p99: Some(p99),
            ..Default::default()
        });
        document.rows.push(row);
    }
    document.rows.push(Row {
        error: Some("not installed".into()),
        ..Row::new("think", "libdispatch")
    });
    let plan = Plan {
        min_rounds: 7,
        max_rounds: 7,
        ..Plan::new(["default", "system"])
    };
    let measured = rounds::run(&plan, &[], |t| {
        let value = if t.setting == "default" {
            1163.8 + t.round as f64 / 10.0
        } else {
            1155.4
        };
        Ok::<_, String>(Observation::from([("bandwidth".to_owned(), value)]))
    })
    .unwrap();
    let against = Against::Setting("system".into());
    document.verdicts = measured.judge(&[
        Bar::new(
            "default is not behind system",
            "default",
            "bandwidth",
            Relation::AtLeast,
            1.0,
            against.clone(),
        ),
        Bar::new(
            "default is a tenth ahead of system",
            "default",
            "bandwidth",
            Relation::AtLeast,
            1.1,
            against,
        ),
        Bar::at_most("no figure of this name", "default", "nothing", 1.0),
    ]);
    document
}

fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            let run = Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            run.is_ok_and(|s| s.success())
        })
}

/// Draws the page at this size; `false` when the browser does not run here.
fn screenshot(
    browser: &str,
    dir: &Path,
    page: &Path,
    image: &Path,
    size: (u32, u32),
    dark: bool,
) -> bool {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--no-first-run",
        ])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--window-size={},{}", size.0, size.1))
        .arg(format!("--screenshot={}", image.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let mut child = command
        .arg(format!("file://{}", page.display()))
        .spawn()
        .expect("it ran with --version");
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success() && image.exists();
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

struct Image {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
    channels: usize,
}

impl Image {
    fn read(path: &Path) -> Self {
        let mut reader = png::Decoder::new(BufReader::new(File::open(path).unwrap()))
            .read_info()
            .unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!(info.bit_depth, png::BitDepth::Eight);
        let channels = info.color_type.samples();
        Self {
            width: info.width as usize,
            height: info.height as usize,
            bytes,
            channels,
        }
    }

    fn rgb(&self, x: usize, y: usize) -> [u8; 3] {
        let at = (y * self.width + x) * self.channels;
        [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2]]
    }

    fn pixels(&self) -> impl Iterator<Item = [u8; 3]> + '_ {
        (0..self.height).flat_map(move |y| (0..self.width).map(move |x| self.rgb(x, y)))
    }

    /// Pixels of this colour, as the style has it.
    fn count(&self, colour: [u8; 3]) -> usize {
        self.pixels().filter(|p| *p == colour).count()
    }
}

#[test]
fn the_report_is_drawn_in_light_and_dark_and_fits_a_phone() {
    let Some(browser) = browser() else {
        println!("skipped: no chromium on this machine");
        return;
    };
    // Kept when asked for, to be looked at.
    let temporary = tempfile::tempdir().unwrap();
    let dir = std::env::var_os("KEEP_SCREENSHOTS")
        .map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    fs::create_dir_all(&dir).unwrap();
    let document = document();
    let html = Report::new(&document)
        .title("cmwq bench crypt")
        .drawing(Drawing::Text(MACHINE))
        .to_html()
        .unwrap();
    let page = dir.join("report.html");
    fs::write(&page, html).unwrap();

    let desk = dir.join("desk.png");
    if !screenshot(browser, temporary.path(), &page, &desk, (1280, 1500), false) {
        println!("skipped: {browser} does not run headless here");
        return;
    }
    let desk = Image::read(&desk);
    assert_eq!((desk.width, desk.height), (1280, 1500));
    let (paper, bar, ours) = ([0xff, 0xff, 0xff], [0xa9, 0xb4, 0xbf], [0x25, 0x63, 0xc9]);
    assert!(
        desk.count(paper) > desk.width * desk.height / 2,
        "mostly paper"
    );
    assert!(desk.count(bar) > 2000, "grey bars: {}", desk.count(bar));
    assert!(
        desk.count(ours) > 1000,
        "highlighted bars: {}",
        desk.count(ours)
    );

    let dark = dir.join("dark.png");
    assert!(screenshot(
        browser,
        temporary.path(),
        &page,
        &dark,
        (1280, 1500),
        true
    ));
    let dark = Image::read(&dark);
    let night = [0x14, 0x18, 0x1c];
    assert!(
        dark.count(night) > dark.width * dark.height / 2,
        "mostly dark paper"
    );
    assert!(
        dark.count([0x5b, 0x95, 0xf5]) > 1000,
        "highlighted bars on dark paper"
    );

    let phone = dir.join("phone.png");
    assert!(screenshot(
        browser,
        temporary.path(),
        &page,
        &phone,
        (390, 3600),
        false
    ));
    let phone = Image::read(&phone);
    assert!(phone.count(ours) > 1000, "charts on the phone");
    // Nothing runs into the margin: wide tables scroll within themselves.
    let margin =
        (0..phone.height).flat_map(|y| (phone.width - 8..phone.width).map(move |x| (x, y)));
    let dirty = margin.filter(|(x, y)| phone.rgb(*x, *y) != paper).count();
    assert_eq!(
        dirty, 0,
        "pixels in the right margin at a width of {}",
        phone.width
    );
}
