// Package fence has what its subpackages share: how a resource refuses a write
// that comes from a holder whose lease has ended.
//
// A lease cannot stop a holder that was paused between its last check and its
// write. The resource can: it remembers the highest fencing token that it has
// seen (Lease.Token), and refuses a write with a lower one. Package sqlfence does
// that in the transaction of the write, package redisfence in the script that
// writes. For other resources see docs/fencing.md.
//
// Three rules make it work:
//
//   - A holder shows its token before it reads what it is going to change. Until
//     the resource has seen the new token, it accepts writes with the old one.
//   - The check and the write are one atomic step.
//   - The remembered token is never lowered and never deleted while a holder may
//     still come with an older one.
//
// A token may be shown any number of times: several writes of one holder have the
// same token, and all pass.
package fence
