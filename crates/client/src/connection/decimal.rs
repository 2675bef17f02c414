//! Numbers as text, without an allocation.

/// Writes `number` as text into `digits`, and returns the text.
#[inline]
pub fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let at = write_decimal(number, digits);
    &digits[at..]
}

/// Writes `number` to the end of `digits`. Returns the index of its first digit.
#[inline]
pub fn write_decimal(number: u64, digits: &mut [u8]) -> usize {
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_no_limit() {
        for number in [0, 9, 10, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
