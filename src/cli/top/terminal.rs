//! The live screen: a terminal that is restored whatever ends it, and the loop of keys, samples and signals.

use std::{
    io::{self, Stdout},
    time::{Duration, SystemTime},
};

use crossterm::event::{Event, EventStream};
use futures_util::{StreamExt, stream};
use ratatui::{Terminal, backend::CrosstermBackend};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    sample::{Meter, Sample, Sampler},
    screen,
    state::State,
};
use crate::cli::{
    failure::{FAILED, Failure},
    signals::Signals,
};

/// Interval at which ages on the screen go on.
const TICK: Duration = Duration::from_secs(1);

/// Terminal with the other screen in raw mode. Dropping it restores the terminal, as the panic hook does.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

/// Shows samples until a key or a signal ends it, beginning with a first one.
pub(super) async fn run(mut state: State, mut meter: Meter, first: Sample, sampler: Sampler) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let mut screen = Screen::enter().map_err(|error| failure(&error))?;
    // Keys are read from the terminal also if standard input is none.
    let mut events = EventStream::new();
    let taken = stream::unfold(sampler, async |mut source| Some((source.next().await, source)));
    tokio::pin!(taken);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    state.show(meter.read(first));
    loop {
        screen.draw(&mut state).map_err(|error| failure(&error))?;
        tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) => if state.press(key) {
                    return Ok(());
                },
                // Drawing adapts to the new size.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failure(&error)),
                None => return Ok(()),
            },
            // Cancel-safe: the stream keeps the sample that is being taken.
            Some(sample) = taken.next() => match sample {
                Ok(sample) => state.show(meter.read(sample)),
                Err(error) => state.fail(error.message.unwrap_or_default()),
            },
            _ = ticks.tick() => {}
        }
    }
}

fn failure(error: &io::Error) -> Failure {
    Failure::new(FAILED, format!("cannot use this terminal: {error}; --once and -o json need none"))
}

// === impl Screen ===

impl Screen {
    fn enter() -> io::Result<Self> {
        // Its panic hook restores the terminal before the message is printed.
        ratatui::try_init().map(Self).inspect_err(|_| drop(ratatui::try_restore()))
    }

    fn draw(&mut self, state: &mut State) -> io::Result<()> {
        state.now = SystemTime::now();
        self.0.draw(|frame| {
            let area = frame.area();
            state.fit(state.heights(area));
            screen::draw(state, area, frame.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        drop(self.0.show_cursor());
        drop(ratatui::try_restore());
    }
}
