//! Owner ids: `client uuid:number`.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rand::TryRng as _;
use rand::rngs::{SysError, SysRng};
use redlatch_client::decimal;
use uuid::Uuid;

use super::PermitId;

const UUID: usize = 36;
/// The length of a uuid, a colon, the longest number and the suffix of a writer.
const LONGEST: usize = UUID + 1 + 20 + WRITES.len();
/// The suffix of an owner that writes, in a read-write lock.
const WRITES: &str = ":write";

/// The number of bits of an owner's number below the milliseconds: a counter, and two flags in the
/// lowest bits. Scripts compare numbers and read their flags, so the numbers must be below 2⁵³, the
/// limit of exact integers in Lua. They are below 2⁵³ until the year 2248.
const BELOW_MILLIS: u32 = 10;
const STEP: u64 = 1 << 2;
/// The flag of an owner whose process wants a message when others wait for its lock. The second
/// flag is reserved, and zero.
const HEARS: u64 = 1;
/// The least number that has a time and flags. The numbers of older versions are counters, which
/// never get so high.
const WITH_TIME: u64 = 1 << 50;
/// The lowest number of a ticket. A client's own acquisitions have no numbers from `OF_TICKET` up
/// to [`WITH_TIME`].
const OF_TICKET: u64 = WITH_TIME / 2;

/// The uuid of a client, and the source of the numbers of its owners, requests and permits.
#[derive(Debug)]
pub(crate) struct ClientId {
    uuid: String,
    seed: u128,
    /// The next number of a request or a permit.
    next: AtomicU64,
    /// The number of the last owner, without its flags.
    last_owner: AtomicU64,
}

impl ClientId {
    /// Makes a uuid of version 8. Redisson's uuids have version 4, so scripts can tell redlatch's
    /// owners from Redisson's.
    ///
    /// The random bits come from the system. A generator in this process would be copied into a
    /// forked child, and the next clients of the parent and of the child would get the same uuid.
    pub(crate) fn random() -> Result<Self, SysError> {
        let mut bytes = [0; 16];
        SysRng.try_fill_bytes(&mut bytes)?;
        let uuid = Uuid::new_v8(bytes);
        let (next, last_owner) = (AtomicU64::new(1), AtomicU64::new(0));
        Ok(Self { uuid: uuid.to_string(), seed: uuid.as_u128(), next, last_owner })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.uuid
    }

    /// Returns a number that this client uses only once, for a request or a permit.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a permit's id, which is used once, like an [owner](Self::next_owner). A client's ids
    /// are consecutive numbers that begin at its uuid. No two ids are equal, because other clients
    /// begin at other uuids, and Redisson's ids are random.
    pub(crate) fn next_permit(&self) -> PermitId {
        PermitId::from_number(self.seed.wrapping_add(self.next_number().into()))
    }

    /// Returns a new owner. The owner's number names one acquisition and is never used again. So a
    /// late command of an old hold cannot change the next hold, and an acquire may be sent twice.
    /// In Redis, the re-entry count of an owner is always 1, because the process counts re-entries
    /// itself.
    pub(crate) fn next_owner(&self) -> Owner {
        self.next_owner_to(Mode::Lock, false)
    }

    /// Returns a new owner for a lock in this mode. `hears` says whether the process wants a
    /// message when others wait for the lock.
    pub(crate) fn next_owner_to(&self, mode: Mode, hears: bool) -> Owner {
        let number = self.next_owner_number() | if hears { HEARS } else { 0 };
        Owner::Lock { client: Uuid::from_u128(self.seed), number, mode }
    }

    /// Returns the owner with which this client adopts a ticket. The owner has the ticket's number,
    /// so each call with the same ticket returns the same owner.
    pub(crate) fn adopter(&self, ticket: &Owner) -> Owner {
        let (client, number) = (Uuid::from_u128(self.seed), ticket.number());
        Owner::Lock { client, number, mode: Mode::Lock }
    }

    /// Returns the present time, followed by a counter. If the clock was set back, or if all
    /// numbers of the millisecond are used, returns the last number plus one. So each owner's
    /// number is higher than the number before.
    fn next_owner_number(&self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = first_number_at(now);
        let after = |last: u64| now.max(last + STEP);
        let last = self
            .last_owner
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
        // The closure always returns `Some`, so the result is always `Ok`.
        last.map_or_else(after, after)
    }
}

/// Returns the lowest owner number of this time since 1970. For a time before 2004, the number
/// would be one of a ticket's numbers. So such a time gets the lowest number that has a time.
fn first_number_at(time: Duration) -> u64 {
    ((time.as_millis() as u64) << BELOW_MILLIS).max(WITH_TIME)
}

/// How an owner holds a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The lock is not a read-write lock.
    #[default]
    Lock,
    Read,
    Write,
}

impl Mode {
    pub(crate) fn suffix(self) -> &'static str {
        if self == Self::Write { WRITES } else { "" }
    }
}

/// The holder of a lock, as it appears in Redis. The owner's text is made for each request, because
/// a stored text would take much of a hold's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Lock {
        client: Uuid,
        number: u64,
        mode: Mode,
    },
    /// A permit, which has an id and no owner.
    Permit(PermitId),
}

impl Owner {
    /// Parses an owner of any client. The text has no suffix of a writer.
    pub(crate) fn parse(text: &str, mode: Mode) -> Option<Self> {
        let (client, number) = text.split_once(':')?;
        Some(Self::Lock {
            client: Uuid::try_parse(client).ok()?,
            number: number.parse().ok()?,
            mode,
        })
    }

    /// Returns a new owner for a ticket. The owner belongs to no client and has a random number.
    pub(crate) fn of_new_ticket() -> Result<Self, SysError> {
        let (mut uuid, mut number) = ([0; 16], [0; 8]);
        SysRng.try_fill_bytes(&mut uuid)?;
        SysRng.try_fill_bytes(&mut number)?;
        let number = OF_TICKET | u64::from_ne_bytes(number) & (OF_TICKET - 1);
        Ok(Self::Lock { client: Uuid::new_v8(uuid), number, mode: Mode::Lock })
    }

    /// Whether `number` is the number of a ticket, or of an owner that has adopted a ticket.
    pub(crate) fn is_ticket_number(number: u64) -> bool {
        (OF_TICKET..WITH_TIME).contains(&number)
    }

    /// Whether the owner belongs to a ticket or has adopted a ticket: both have a ticket's number.
    pub(crate) fn has_ticket_number(&self) -> bool {
        Self::is_ticket_number(self.number())
    }

    /// Whether this owner can belong to a ticket.
    pub(crate) fn is_of_ticket(&self) -> bool {
        let is_ours = |client: &Uuid| client.get_version_num() == 8;
        self.has_ticket_number() && matches!(self, Self::Lock { client, .. } if is_ours(client))
    }

    pub(crate) fn text(&self) -> OwnerText {
        match self {
            Self::Lock { client, number, mode } => {
                let mut uuid = [0; UUID];
                client.hyphenated().encode_lower(&mut uuid);
                OwnerText::of_lock(&uuid, *number, *mode)
            }
            Self::Permit(id) => OwnerText::of([id.as_bytes()]),
        }
    }

    /// Like [`text`](Self::text), but takes the text of the uuid from `id` if the owner is this
    /// client's.
    pub(crate) fn text_by(&self, id: &ClientId) -> OwnerText {
        match self {
            Self::Lock { client, number, mode } if client.as_u128() == id.seed => {
                OwnerText::of_lock(id.uuid.as_bytes(), *number, *mode)
            }
            _ => self.text(),
        }
    }

    /// Returns the owner's text for errors and log lines, without the suffix of a writer.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Lock { client, number, .. } => format!("{client}:{number}"),
            Self::Permit(id) => id.to_string(),
        }
    }

    /// Returns the owner's number, or zero for a permit.
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Lock { number, .. } => *number,
            Self::Permit(_) => 0,
        }
    }

    /// Returns the time at which the owner's process requested the lock, by the clock of that
    /// process. Returns `None` if the owner's number contains no time.
    pub(crate) fn asked_at(&self) -> Option<SystemTime> {
        let number = Some(self.number()).filter(|number| *number >= WITH_TIME)?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(number >> BELOW_MILLIS))
    }

    /// Whether scripts send the owner's process a message when others wait for the lock.
    pub(crate) fn hears(&self) -> bool {
        self.number() >= WITH_TIME && self.number() & HEARS != 0
    }

    pub(crate) fn mode(&self) -> Mode {
        match self {
            Self::Lock { mode, .. } => *mode,
            Self::Permit(_) => Mode::Lock,
        }
    }
}

/// The text of an [`Owner`], without an allocation.
pub(crate) struct OwnerText {
    bytes: [u8; LONGEST],
    len: usize,
}

impl OwnerText {
    fn of_lock(uuid: &[u8], number: u64, mode: Mode) -> Self {
        Self::of([uuid, b":", decimal(number, &mut [0; 20]), mode.suffix().as_bytes()])
    }

    fn of<const N: usize>(pieces: [&[u8]; N]) -> Self {
        let mut text = Self { bytes: [0; LONGEST], len: 0 };
        for piece in pieces {
            let end = text.len + piece.len();
            text.bytes[text.len..end].copy_from_slice(piece);
            text.len = end;
        }
        text
    }
}

impl Deref for OwnerText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl From<PermitId> for Owner {
    fn from(id: PermitId) -> Self {
        Self::Permit(id)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_uuid_and_a_number_never_given_twice() {
        let client = ClientId::random().unwrap();
        let (first, second) = (client.next_owner(), client.next_owner());
        assert_ne!(*first.text(), *second.text());
        let text = first.to_string();
        let (uuid, number) = text.split_once(':').unwrap();
        assert_eq!(Uuid::parse_str(uuid).unwrap().get_version_num(), 8);
        let number: u64 = number.parse().unwrap();
        assert!((WITH_TIME..1 << 53).contains(&number), "{number}");
    }

    #[test]
    fn a_number_tells_the_time_and_the_flags_and_never_falls() {
        let (client, before) = (ClientId::random().unwrap(), SystemTime::now());
        let owners: Vec<_> =
            (0..2_000).map(|i| client.next_owner_to(Mode::Write, i % 2 == 1)).collect();
        let after = SystemTime::now();
        for (i, owner) in owners.iter().enumerate() {
            assert_eq!(
                owner.number() & (STEP - 1),
                i as u64 % 2,
                "the lowest flag, the other zero"
            );
        }
        assert!(owners.is_sorted_by(|one, next| one.number() + 1 < next.number()));
        let first = owners[0].asked_at().unwrap();
        let ms = Duration::from_millis(1);
        assert!(before - ms <= first && first <= after, "{before:?} {first:?} {after:?}");

        // The clock was set back.
        let last = owners[1_999].number() + (1 << 30);
        client.last_owner.store(last, Ordering::Relaxed);
        assert_eq!(client.next_owner().number(), last + STEP);
    }

    #[test]
    fn the_number_of_an_older_client_or_of_redisson_tells_no_time() {
        let owner = |number: u64| {
            let text = format!("0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:{number}");
            Owner::parse(&text, Mode::Lock).unwrap().asked_at()
        };
        assert_eq!((owner(1), owner(WITH_TIME - 1)), (None, None));
        let second = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        assert_eq!(owner(1_800_000_000_123 << BELOW_MILLIS | 1), Some(second));
    }

    #[test]
    fn no_clock_gives_an_acquisition_the_number_of_a_ticket() {
        for year in 0..200 {
            let number = first_number_at(Duration::from_secs(year * 31_556_952));
            assert!(number >= WITH_TIME && !Owner::is_ticket_number(number), "1970 + {year}");
        }
    }

    #[test]
    fn a_tickets_number_is_no_clients_and_goes_to_its_adopter() {
        let client = ClientId::random().unwrap();
        let tickets: Vec<_> = (0..100).map(|_| Owner::of_new_ticket().unwrap()).collect();
        for ticket in &tickets {
            let adopter = client.adopter(ticket);
            assert!(ticket.is_of_ticket() && adopter.has_ticket_number());
            assert_eq!(adopter.number(), ticket.number());
            assert!(adopter.to_string().starts_with(client.as_str()));
            assert_eq!((adopter.asked_at(), adopter.hears()), (None, false));
            assert!(Owner::parse(&ticket.to_string(), Mode::Lock).unwrap() == *ticket);
        }
        let own = client.next_owner();
        assert!(!own.has_ticket_number() && own != client.adopter(&tickets[0]));
        let numbers = tickets.iter().map(Owner::number);
        assert!(numbers.collect::<std::collections::BTreeSet<_>>().len() == tickets.len());
    }

    #[test]
    fn an_owner_of_any_client_is_a_uuid_and_a_number() {
        let uuid = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab";
        for text in [format!("{uuid}:1"), format!("{uuid}:17")] {
            assert_eq!(Owner::parse(&text, Mode::Lock).unwrap().to_string(), text);
        }
        for text in ["mode", uuid, &format!("{uuid}:"), &format!("{uuid}:x"), &format!("é{uuid}:1")]
        {
            assert!(Owner::parse(text, Mode::Lock).is_none(), "{text}");
        }
    }

    #[test]
    fn the_longest_number_fits() {
        let next = AtomicU64::new(u64::MAX);
        let last_owner = AtomicU64::new(u64::MAX - STEP);
        let client = ClientId { uuid: Uuid::nil().to_string(), seed: u128::MAX, next, last_owner };
        assert_eq!(client.next_permit(), PermitId::from_number(u128::from(u64::MAX) - 1));
        let writer = client.next_owner_to(Mode::Write, false);
        assert!(writer.to_string().ends_with(&format!("{}:write", u64::MAX)));
    }
}
