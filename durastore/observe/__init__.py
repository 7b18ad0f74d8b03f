"""What happened, told as events to whoever listens; nothing here touches a disk or a network."""
