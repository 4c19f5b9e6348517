//! Any text as the value of any attribute: a value of that attribute, or a short printable error.
#![no_main]

use cmwq_control::attr::{Attr, ParseContext, Setting};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, &str)| {
    let (which, nr_cpu_ids, text) = input;
    let all: Vec<_> = Attr::all().collect();
    let attr = all[which as usize % all.len()].attr;
    let context = ParseContext { nr_cpu_ids: u32::from(nr_cpu_ids) };
    match Setting::parse(attr, text, &context) {
        Ok(parsed) => {
            assert_eq!(parsed.setting.attr(), attr);
            if let Setting::Cpumask(set) | Setting::GlobalCpumask(set) = &parsed.setting {
                assert!(set.last().is_none_or(|last| last < usize::from(nr_cpu_ids)));
            }
        }
        Err(e) => assert!(e.message.len() < 2000 && !e.message.chars().any(char::is_control), "{e:?}"),
    }
});
