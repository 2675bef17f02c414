-- Takes a fair lock if it has no holder and no waiters. The script makes no entry in the queue.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- ARGV 4 lease in ms, 5 owner
-- reply: 1 = taken (or held by this owner already), 0 = not taken
local lease, owner = ARGV[4], ARGV[5]

local held_by, left, type_error = holder()
if type_error then
    return type_error
elseif held_by == owner then
    raise(left, lease)
    return 1
elseif held_by then
    return 0
end

local head, granted, dropped = hand_on()
if head then
    if dropped and not granted then
        send_ask(head)
    end
    return 0
end
take_anew(owner, lease)
return 1
