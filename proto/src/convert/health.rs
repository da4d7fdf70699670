//! Converts what agents find out about the health of their machines.

use ragent_rendezvous::message::{HEALTH_KIND_MAX, HardwareFact, HealthClass, OomKill, Unhealthy};

use super::{
    failure::{micros, to_micros},
    fitted_line, fitted_to, line, one_line,
};
use crate::{Malformed, v1};

enumeration!(HealthClass, HealthClass, "unhealthy.class", [Reset, Replace, Gone]);
enumeration!(OomKill, OomKill, "failure.oom", [Probable, Certain]);

impl From<Unhealthy> for v1::Unhealthy {
    fn from(Unhealthy { class, kind, reason }: Unhealthy) -> Self {
        Self {
            class: v1::HealthClass::from(class).into(),
            kind: fitted_to(&kind, HEALTH_KIND_MAX),
            reason: fitted_line(&reason),
        }
    }
}

impl TryFrom<v1::Unhealthy> for Unhealthy {
    type Error = Malformed;

    fn try_from(unhealthy: v1::Unhealthy) -> Result<Self, Malformed> {
        let kind = "unhealthy.kind";
        Ok(Self {
            class: unhealthy.class().try_into()?,
            kind: match one_line(unhealthy.kind, kind, HEALTH_KIND_MAX)? {
                empty if empty.is_empty() => return Err(Malformed::Missing(kind)),
                kind => kind,
            },
            reason: line(unhealthy.reason, "unhealthy.reason")?,
        })
    }
}

impl From<HardwareFact> for v1::HardwareFact {
    fn from(HardwareFact { text, age }: HardwareFact) -> Self {
        Self { text: fitted_line(&text), age_us: age.map(to_micros) }
    }
}

impl TryFrom<v1::HardwareFact> for HardwareFact {
    type Error = Malformed;

    fn try_from(v1::HardwareFact { text, age_us }: v1::HardwareFact) -> Result<Self, Malformed> {
        let text = line(text, "hardware_fact.text")?;
        let age = age_us.map(|age| micros(age, "hardware_fact.age_us")).transpose()?;
        Ok(Self { text, age })
    }
}
