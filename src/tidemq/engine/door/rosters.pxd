from tidemq.engine.base.inquiry cimport Inquiry, ListedMessage, ListedSubscriber
from tidemq.engine.base.roster cimport ListedClient, Roster

cdef object roster_of(const Roster* roster)
cdef Roster* new_roster(object number, object question) except NULL
cdef object finding_of(const Inquiry* inquiry)
cdef Inquiry* new_inquiry(object number, object inquiry) except NULL

# of this module alone
cdef object _client_of(const ListedClient* row)
cdef object _place_of(const Roster* roster)
cdef object _message_of(const ListedMessage* row)
cdef object _subscriber_of(const ListedSubscriber* row)
