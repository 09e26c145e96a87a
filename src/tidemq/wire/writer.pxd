# Compiled because of this file; nothing in the module is for other compiled modules.
