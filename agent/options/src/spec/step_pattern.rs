//! Reads the pattern of training steps in the output of workers, and finds steps with it.

use std::sync::{Arc, OnceLock};

use regex::bytes::{Captures, Match, Regex, RegexBuilder};

use super::{UsageError, argument::Argument, arguments::Arguments};
use ragent_base::sys::host::Host;

/// The pattern of training steps in the output of workers.
#[derive(Clone, Debug)]
pub enum StepPattern {
    /// The formats of common frameworks.
    Known,
    /// The pattern of the user.
    Given(Arc<Regex>),
}

impl PartialEq for StepPattern {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known, Self::Known) => true,
            (Self::Given(one), Self::Given(other)) => one.as_str() == other.as_str(),
            (Self::Known, Self::Given(_)) | (Self::Given(_), Self::Known) => false,
        }
    }
}

/// The formats of common frameworks, the most specific one first. A number counts only once the character after it is
/// there, as a line may be incomplete.
const KNOWN: [&str; 4] = [
    // Megatron: ` iteration      120/  100000 |`
    r"(?i)\biteration\s+(?<step>\d+)/\s*(?<steps>\d+)[^\d]",
    // nanoGPT: `iter 120: loss 0.31`; its evaluations print `step 120: train loss 0.31`
    r"(?i)\biter\s+(?<step>\d+):",
    // torchtitan and others: `step: 120`, `global_step=120`, `Step 120/1000`, `"step": 120`, and each after the code of a colour;
    // other names that end like this are mostly settings, such as DeepSpeed's `"profile_step": 1`
    r#"(?i)(?:^|[^a-z_]|\x1b\[[\d;]*m)(?:(?:current|global|optimizer|train|training)_)?step["']?(?<sign>[ \t:=]+)(?<step>\d+)(?:\s*/\s*(?<steps>\d+))?(?:[^\d,./]|[,.][^\d])"#,
    // tqdm: ` 12%|█▏        | 120/1000 [00:31<03:47,  3.87it/s]`
    r"(?:^|[\s|])(?<step>\d+)/(?<steps>\d+) \[",
];

/// The index of tqdm's format.
const BAR: usize = KNOWN.len() - 1;

/// The beginnings of the words by which bars are described that show something else than training steps.
const OTHER_BARS: [&str; 32] = [
    "cach", "check", "compil", "comput", "convert", "copy", "download", "eval", "extract", "fetch",
    "filter", "generat", "import", "infer", "load", "map", "pack", "predict", "prepar", "preproc",
    "quantiz", "read", "resolv", "sanity", "sav", "shard", "shuffl", "test", "token", "upload",
    "val", "writ",
];

/// The description of a bar that shows the batches of one epoch: `Epoch 2:` of Lightning, which counts epochs from 0.
const EPOCH: &str = r"(?i)\bepoch\s+(?<epoch>\d+):";

/// Moves the cursor up. tqdm writes it after a bar that it has drawn below another one.
const BELOW: &[u8] = b"\x1b[A";

/// The number of times that output is examined until a bar replaces one with more steps that has not ended: at least ten minutes.
/// Until then it may belong to an evaluation.
const OTHER_BAR_FOR: u32 = 6_000;

/// The memory of a compiled pattern, in bytes; a pattern with bounded repetitions of repetitions exceeds it.
const MAX_PATTERN: usize = 1 << 20;

impl StepPattern {
    fn parse(given: &Argument) -> Result<Option<Self>, UsageError> {
        let pattern = match given.text.as_str() {
            "off" => return Ok(None),
            "auto" => return Ok(Some(Self::Known)),
            pattern => pattern,
        };
        let hint = r"give a regular expression with a group for the step, and optionally one for the number of all steps, such as `step (?<step>\d+)/(?<steps>\d+)`";
        let compiled = compile(pattern).map_err(|error| invalid(given, &error).with_hint(hint))?;
        if !compiled.capture_names().flatten().any(|name| name == "step") {
            let problem =
                r"is neither `auto` nor `off`, and as a pattern it has no group `(?<step>\d+)`";
            return Err(given.invalid(problem).with_hint(hint));
        }
        Ok(Some(Self::Given(Arc::new(compiled))))
    }
}

/// Finds the training steps of one worker.
#[derive(Debug)]
pub struct StepFinder {
    pattern: StepPattern,
    /// The number of known formats that are searched: once one has counted, the less specific ones are not.
    formats: usize,
    /// The last step in each format other than bars.
    last: [Option<u64>; BAR],
    /// The last bar that counted.
    bar: Option<Bar>,
    /// True if that bar has advanced, so that it is not the one of epochs above the one of their batches.
    has_advanced: bool,
    /// The number of times that only other bars were found since then.
    others: u32,
}

/// A progress bar.
#[derive(Clone, Copy, Debug)]
struct Bar {
    step: u64,
    all: u64,
    /// The epoch whose batches it shows, if it names one.
    epoch: Option<u64>,
    /// True if it is drawn below another bar.
    is_below: bool,
    /// True if its line has ended. Until then it may be below another bar.
    is_complete: bool,
}

impl StepFinder {
    /// Creates a finder for the output of a worker.
    pub fn new(pattern: StepPattern) -> Self {
        Self {
            pattern,
            formats: KNOWN.len(),
            last: [None; BAR],
            bar: None,
            has_advanced: false,
            others: 0,
        }
    }

    /// Returns the step in the newest line of `output` that has one, and the number of all steps if that line has it.
    ///
    /// Lines end with a line feed or a carriage return. A known format is also found in a last line that is incomplete, as
    /// progress bars have no end.
    pub fn newest(&mut self, output: &[u8]) -> Option<(u64, Option<u64>)> {
        match &self.pattern {
            StepPattern::Known => self.newest_known(output),
            StepPattern::Given(given) => lines(output).rev().find_map(|line| {
                let (end, line) = line.split_last()?;
                let is_complete = matches!(end, b'\n' | b'\r');
                numbers(&given.captures(line).filter(|_| is_complete)?)
            }),
        }
    }

    /// Returns the newest step in a known format.
    fn newest_known(&mut self, output: &[u8]) -> Option<(u64, Option<u64>)> {
        let mut unchanged = None;
        for (index, format) in known().iter().enumerate().take(self.formats.min(BAR)) {
            let newest = lines(output).rev().find_map(|line| {
                let captures = format.captures(line)?;
                Some((line, is_in_a_sentence(&captures), numbers(&captures)?))
            });
            let Some((line, is_in_a_sentence, found)) = newest else { continue };
            let before = self.last[index].replace(found.0);
            // A number that does not change may be anything, and so may one in a sentence beside a bar: the step of a checkpoint.
            let is_text = is_in_a_sentence && self.has_advanced;
            let has_changed = !is_text && before.is_some_and(|before| before != found.0);
            if has_changed || self.formats == index + 1 || Bar::parse(line).is_some() {
                self.formats = index + 1;
                return Some(found);
            }
            let is_repeated = self.bar.is_some() && before == Some(found.0);
            if unchanged.is_none() && !is_in_a_sentence && !is_repeated {
                unchanged = Some((line, found));
            }
        }
        if self.formats <= BAR {
            return None;
        }
        let bars = lines(output).filter(|line| !is_other_bar(line));
        let bars: Vec<Bar> = bars.filter_map(Bar::parse).collect();
        let bar = self.newest_bar(&bars);
        let is_newest = |line: &[u8]| {
            let mut after = lines(output).rev().take_while(|other| other.as_ptr() != line.as_ptr());
            !after.any(|other| Bar::parse(other).is_some())
        };
        match unchanged {
            Some((line, found)) if bar.is_none() || is_newest(line) => Some(found),
            Some(_) | None => bar,
        }
    }

    /// Returns the step of the last of these bars that shows the training.
    fn newest_bar(&mut self, bars: &[Bar]) -> Option<(u64, Option<u64>)> {
        let mut newest = None;
        for bar in bars.iter().filter(|bar| !bar.starts_an_epoch()) {
            if self.counts(bar) {
                let before = self.bar.filter(|before| before.all == bar.all);
                self.has_advanced =
                    before.is_some_and(|before| self.has_advanced || before.step < bar.step);
                (self.bar, self.others) = (Some(*bar), 0);
                newest = bar.step_of_training();
            }
        }
        if newest.is_none() && !bars.is_empty() {
            self.others += 1;
        }
        newest
    }

    /// Returns true if a bar shows the training.
    ///
    /// A bar that is drawn below that of the training belongs to something else, such as an evaluation. So does one with
    /// fewer steps while the training has not ended.
    fn counts(&self, bar: &Bar) -> bool {
        let Some(known) = self.bar.filter(|_| self.others < OTHER_BAR_FOR) else { return true };
        let may_be_below = bar.is_below || (!bar.is_complete && bar.all != known.all);
        if self.has_advanced && may_be_below && !known.is_below {
            return false;
        }
        bar.all >= known.all || !known.is_unfinished()
    }
}

impl Bar {
    /// Finds a bar in a line.
    fn parse(line: &[u8]) -> Option<Self> {
        let (step, all) = numbers(&known().get(BAR)?.captures(line)?)?;
        let epoch = epoch().captures(line).and_then(|captures| number(&captures, "epoch"));
        let is_below = line.trim_ascii_end().ends_with(BELOW);
        let is_complete = matches!(line.last(), Some(b'\n' | b'\r'));
        Some(Self { step, all: all?, epoch, is_below, is_complete })
    }

    fn is_unfinished(&self) -> bool {
        self.step < self.all
    }

    /// Returns true if it shows the start of an epoch, which is the end of the one before. Lightning draws it before it
    /// changes the number of the epoch.
    fn starts_an_epoch(&self) -> bool {
        self.epoch.is_some() && self.step == 0
    }

    /// Returns the step. The number of all steps is not known if there are epochs.
    fn step_of_training(&self) -> Option<(u64, Option<u64>)> {
        match self.epoch {
            Some(epoch) => Some((epoch.checked_mul(self.all)?.checked_add(self.step)?, None)),
            None => Some((self.step, Some(self.all))),
        }
    }
}

/// Returns the lines of output, with their ends.
fn lines(output: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    output.split_inclusive(|byte| matches!(byte, b'\n' | b'\r'))
}

/// Returns true if a bar describes itself as something else than training: `Loading weights: 100%|███| 28/28 [`.
fn is_other_bar(line: &[u8]) -> bool {
    let end = line.iter().position(|byte| *byte == b'|').unwrap_or(0);
    let description = String::from_utf8_lossy(&line[..end]).to_lowercase();
    let mut words = description.split(|c: char| !c.is_alphabetic());
    words.any(|word| OTHER_BARS.iter().any(|other| word.starts_with(other)))
}

/// Returns the compiled known formats.
fn known() -> &'static [Regex] {
    static COMPILED: OnceLock<Vec<Regex>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        KNOWN.iter().map(|pattern| compile(pattern).expect("a test compiles them")).collect()
    })
}

/// Returns the compiled description of an epoch.
fn epoch() -> &'static Regex {
    static COMPILED: OnceLock<Regex> = OnceLock::new();
    COMPILED.get_or_init(|| compile(EPOCH).expect("a test compiles it"))
}

/// A pattern that selects lines.
#[derive(Clone, Debug)]
pub struct LinePattern(Regex);

impl LinePattern {
    /// Reads a regular expression.
    ///
    /// # Errors
    ///
    /// Returns [`UsageError`] if it is not valid.
    pub fn read(given: &Argument) -> Result<Self, UsageError> {
        compile(&given.text).map(Self).map_err(|error| invalid(given, &error))
    }

    /// Returns true if a part of `line` matches.
    pub fn matches(&self, line: &str) -> bool {
        self.0.is_match(line.as_bytes())
    }
}

fn invalid(given: &Argument, error: &regex::Error) -> UsageError {
    // The first lines repeat the pattern and mark the position.
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason);
    given.invalid(format_args!("is not a valid pattern: {reason}"))
}

fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    // Output may have any bytes.
    RegexBuilder::new(pattern).unicode(false).size_limit(MAX_PATTERN).build()
}

/// Returns the step in a match, and the number of all steps.
fn numbers(captures: &Captures<'_>) -> Option<(u64, Option<u64>)> {
    Some((number(captures, "step")?, number(captures, "steps")))
}

/// Returns true if only blanks are before the step: `resuming from step 8`.
fn is_in_a_sentence(captures: &Captures<'_>) -> bool {
    let is_blank = |sign: Match<'_>| sign.as_bytes().trim_ascii().is_empty();
    captures.name("sign").is_some_and(is_blank) && captures.name("steps").is_none()
}

/// Returns the number of a group.
fn number(captures: &Captures<'_>, group: &str) -> Option<u64> {
    let digits = captures.name(group)?.as_bytes().iter();
    let digits: String =
        digits.filter(|byte| !matches!(byte, b',' | b'_')).map(|&byte| byte as char).collect();
    digits.trim().parse().ok()
}

impl<H: Host> Arguments<'_, H> {
    pub(super) fn step_pattern(&self) -> Result<Option<StepPattern>, UsageError> {
        match self.argument("progress", &self.args.progress) {
            Some(given) => StepPattern::parse(&given),
            None => Ok(Some(StepPattern::Known)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn newest(output: &str) -> Option<(u64, Option<u64>)> {
        StepFinder::new(StepPattern::Known).newest(output.as_bytes())
    }

    fn parse(text: &str) -> Result<Option<StepPattern>, UsageError> {
        StepPattern::parse(&Argument::new("--progress", text))
    }

    /// The lines of common frameworks have a step.
    #[test]
    fn known_formats() {
        let rows = [
            (" iteration      120/  100000 | consumed samples:   480 |\n", 120, Some(100_000)),
            ("[2026-11-21 20:31:07] iteration 7/9\n", 7, Some(9)),
            ("\u{1b}[31mstep: 12  \u{1b}[32mloss:  7.1\u{1b}[39m\n", 12, None),
            ("step: \t7\n", 7, None),
            ("Step 50/1000, loss=0.31\n", 50, Some(1000)),
            ("global_step=48, epoch=2\n", 48, None),
            ("{\"loss\": 0.31, \"step\": 120}\n", 120, None),
            ("INFO step=120.\n", 120, None),
            ("iter 120: loss 3.2431, time 12.1ms\n", 120, None),
            ("epoch=0/micro_step=10/global_step=5, samples=2.5\n", 5, None),
            ("Epoch 2:  25%|██▌       | 2/8 [00:00<00:02, 2.80it/s, loss=0.3]\r", 18, None),
            ("\r 12%|█▏        | 120/1000 [00:31<03:47,  3.87it/s]", 120, Some(1000)),
            ("\r100%|██████████| 10/10 [00:31<00:00, loss=0.3]\n", 10, Some(10)),
            ("Epoch 0: 10%|█ | 1/10 [00:01<00:10, global_step=41, v_num=0]\r", 41, None),
        ];
        for (output, step, steps) in rows {
            assert_eq!(newest(output), Some((step, steps)), "{output}");
        }
    }

    /// Other lines have none, and neither has a number that may be incomplete.
    #[test]
    fn other_lines() {
        for output in [
            "",
            "\n\r\n",
            "epoch=1/4 world_size=2 loss=1.7803 seconds=0.43\n",
            "max_steps=1000\n",
            "warmup: 7 steps\n",
            "footstep: 7\n",
            "step: 48,210\n",
            "step: 1.5\n",
            "step: 12",
            "step: 12/10",
            "iteration 12/10",
            "iter 12",
            "took 1.5/3 [s]\n",
            "    \"profile_step\": 1,\n",
            "Namespace(save_step=500)\n",
            "step: 99999999999999999999999\n",
        ] {
            assert_eq!(newest(output), None, "{output}");
        }
    }

    /// Bars of other things than training have no step: those that say so, and those with fewer steps than a training that has not
    /// ended. A training after another one has another number of steps.
    #[test]
    fn bars_of_other_things() {
        for output in [
            "Loading weights: 100%|██████████| 28/28 [00:00<00:00, 900.11it/s]\r",
            "Map (num_proc=4):  50%|█████     | 500/1000 [00:01<00:01, 480.1 examples/s]\r",
            "Downloading shards:  50%|█████     | 1/2 [00:01<00:01]\r",
            "Evaluating: 10%|█ | 1/10 [00:01<00:10]\r",
            "Sanity Checking DataLoader 0:  50%|█████     | 1/2 [00:00<00:00]\r",
        ] {
            assert_eq!(newest(output), None, "{output}");
        }
        let mut finder = StepFinder::new(StepPattern::Known);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("100%|███| 28/28 [00:00<00:00]\r"), Some((28, Some(28))));
        assert_eq!(newest("  5%|▌  | 40/800 [00:10<03:00]\r"), Some((40, Some(800))));
        assert_eq!(newest("\r 10%|█  | 1/10 [00:00<00:01]"), None);
        let both = "  5%|▌  | 41/800 [00:12<03:00]\r 20%|█  | 2/10 [00:00<00:01]";
        assert_eq!(newest(both), Some((41, Some(800))));
        let next = "\r 10%|█  | 50/500 [00:00<00:01]";
        let ignored = (0..=OTHER_BAR_FOR).take_while(|_| newest(next).is_none()).count();
        assert_eq!(ignored, usize::try_from(OTHER_BAR_FOR).unwrap());
        assert_eq!(newest("100%|███| 500/500 [00:00<00:00]\r"), Some((500, Some(500))));
        assert_eq!(newest(" 10%|█  | 1/10 [00:00<00:01]\r"), Some((1, Some(10))));
    }

    /// A bar that tqdm draws below that of the training shows something else, however many steps it has, and even after the end of
    /// the training. The bar of batches may be below that of epochs.
    #[test]
    fn bars_below_the_training() {
        let mut finder = StepFinder::new(StepPattern::Known);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("\r 4/12 [00:01<00:08]\r 5/12 [00:01<00:08]"), Some((5, Some(12))));
        assert_eq!(newest("\n\r 3/16 [00:00<00:01]"), None);
        assert_eq!(newest("\n\r 3/16 [00:00<00:01]\u{1b}[A\n"), None);
        assert_eq!(newest("\r 3/12 [00:00<00:01]\u{1b}[A\n"), None);
        let both = "\r12/12 [00:03<00:00]\n\r 9/16 [00:00<00:01]\u{1b}[A\n\r 10/16 [00:00<00:01]";
        assert_eq!(newest(both), Some((12, Some(12))));
        assert_eq!(newest("\n\r 3/12 [00:00<00:01]\u{1b}[A\n"), None);
        assert_eq!(newest("\r 1/20 [00:00<00:01]"), None, "it may be below");
        assert_eq!(newest("\r 1/20 [00:00<00:01]\r 2/20 [00:00<00:01]"), Some((2, Some(20))));
        let mut finder = StepFinder::new(StepPattern::Known);
        let epochs = b"\r 0/3 [00:00<?]\n\r 7/100 [00:00<00:01]\x1b[A\n";
        assert_eq!(finder.newest(epochs), Some((7, Some(100))));
    }

    /// The bar of the batches of an epoch goes on where that of the epoch before has ended.
    #[test]
    fn bars_of_epochs() {
        let mut finder = StepFinder::new(StepPattern::Known);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("Epoch 0: 100%|██████████| 8/8 [00:02<00:00]\r"), Some((8, None)));
        let start =
            "Epoch 0:   0%|  | 0/8 [00:00<?, ?it/s]\rEpoch 1:   0%|  | 0/8 [00:00<?, ?it/s]\r";
        assert_eq!(newest(start), None);
        assert_eq!(newest("Epoch 1:  12%|█▎        | 1/8 [00:00<00:02]\r"), Some((9, None)));
        let huge = "Epoch 18446744073709551615:  12%|█▎        | 1/8 [00:00<00:02]\r";
        assert_eq!(newest(huge), None);
    }

    /// A number that does not change does not count, so bars are still read after it. In a sentence it counts once it changes, but not beside a bar.
    #[test]
    fn numbers_that_do_not_change() {
        let mut finder = StepFinder::new(StepPattern::Known);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("Resuming training from epoch 0 and global step 8\n"), None);
        assert_eq!(newest("from step: 8\n"), Some((8, None)));
        assert_eq!(newest("\r 9/12 [00:01<00:08]"), Some((9, Some(12))));
        assert_eq!(newest("\r 10/12 [00:01<00:08]"), Some((10, Some(12))));
        let newer = "\r 10/12 [00:01<00:08]epoch 3\nstep: 8\n";
        assert_eq!(newest(newer), Some((10, Some(12))), "a repeated number");
        assert_eq!(newest("saved the checkpoint of step 10\n"), None);
        assert_eq!(newest("epoch 3\nstep: 11\n"), Some((11, None)), "a counter");
        assert_eq!(newest("\r 12/12 [00:01<00:08]"), None);
        let mut finder = StepFinder::new(StepPattern::Known);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("step 0: train loss 4.2, val loss 4.3\n"), None);
        assert_eq!(newest("iter 0: loss 4.2\n"), Some((0, None)));
        assert_eq!(newest("iter 10: loss 4.1\n"), Some((10, None)));
        assert_eq!(newest("step 2000: train loss 3.2, val loss 3.3\n"), None);
    }

    /// The newest line with a step counts, wherever lines end with a line feed or a carriage return.
    #[test]
    fn newest_line_counts() {
        assert_eq!(newest("step: 1\nstep: 2\nsaved\nstep: 3"), Some((2, None)));
        let bar = "\r 1/9 [00:01<00:08]\r 2/9 [00:02<00:07]";
        assert_eq!(newest(bar), Some((2, Some(9))));
        let odd = [b"\xff\xfe step: 4\n".as_slice(), &[0; 100], b"\n\xc3"].concat();
        assert_eq!(StepFinder::new(StepPattern::Known).newest(&odd), Some((4, None)));
    }

    /// Once a format has counted, less specific ones are not searched: a script that writes steps may also draw bars.
    #[test]
    fn most_specific_format_counts() {
        let mut finder = StepFinder::new(StepPattern::Known);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("\r 3/9 [00:01<00:02]"), Some((3, Some(9))));
        assert_eq!(
            newest("\r 4/9 [00:01<00:02]\nstep: 70\n 5/9 [00:01<00:01]"),
            Some((5, Some(9)))
        );
        assert_eq!(newest("step: 71\n 6/9 [00:01<00:01]"), Some((71, None)));
        assert_eq!(newest("\r 7/9 [00:01<00:01]"), None);
        assert_eq!(newest("step: 72\n"), Some((72, None)));
    }

    /// A pattern of the user is searched in complete lines, without their ends; groups of digits may be separated.
    #[test]
    fn pattern_of_the_user() {
        let pattern = parse(r"^done (?<step>[\d,_]+)( of (?<steps>\d+))?$").unwrap().unwrap();
        let mut finder = StepFinder::new(pattern);
        let mut newest = |output: &str| finder.newest(output.as_bytes());
        assert_eq!(newest("done 48,210 of 100000\n"), Some((48_210, Some(100_000))));
        assert_eq!(newest("done 7\rdone 8"), Some((7, None)));
        assert_eq!(newest("step: 7\n"), None);
    }

    /// A pattern needs a group for the step, and must be valid.
    #[test]
    fn patterns_are_checked() {
        assert_eq!(parse("off"), Ok(None));
        assert_eq!(parse("auto"), Ok(Some(StepPattern::Known)));
        let message = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            message(r"step (\d+)"),
            r"`--progress step (\d+)` is neither `auto` nor `off`, and as a pattern it has no group `(?<step>\d+)`"
        );
        let unclosed = message(r"(?<step>\d+");
        assert!(unclosed.ends_with("is not a valid pattern: unclosed group"), "{unclosed}");
        let huge = message(r"(?<step>\d{1000}{1000})");
        assert!(huge.contains("is not a valid pattern: "), "{huge}");
        assert!(parse("").is_err());
    }

    proptest! {
        /// Any output is searched without a panic, and a step that is found is written in it.
        #[test]
        fn any_output_is_searched(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..6),
                    prop::sample::select(vec![
                        "step", "iter", "iteration", ":", "=", " ", "/", " [", "\n", "\r", "7", "42", "\u{1b}[31m",
                    ])
                    .prop_map(|text| text.as_bytes().to_vec()),
                ],
                0..40,
            )
        ) {
            let output = parts.concat();
            if let Some((step, _)) = StepFinder::new(StepPattern::Known).newest(&output) {
                let digits = step.to_string();
                prop_assert!(output.windows(digits.len()).any(|part| part == digits.as_bytes()));
            }
        }
    }
}
